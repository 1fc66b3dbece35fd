// Rows with a label, words and a bar.

export function showBars(into, rows) {
  into.replaceChildren(
    ...rows.map(({ label, words, part, kind }) => {
      const row = document.createElement("div");
      if (kind) row.className = kind;
      const [name, text, bar] = ["b", "span", "i"].map((tag) => document.createElement(tag));
      name.textContent = label;
      text.textContent = words;
      row.append(name, text);
      if (part !== undefined) {
        row.append(bar);
        // Later, so that the bar grows.
        requestAnimationFrame(() => bar.style.setProperty("--part", `${100 * part}%`));
      }
      return row;
    }),
  );
}
