// A box that files are dropped on or chosen in.

export function dropBox(input, take) {
  const box = input.closest(".drop");
  input.addEventListener("change", () => {
    const files = [...input.files];
    // The same files may be chosen again.
    input.value = "";
    if (files.length) take(files);
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    box.addEventListener(kind, (event) => {
      event.preventDefault();
      event.stopPropagation();
      box.classList.toggle("over", kind === "dragover");
      const files = kind === "drop" ? [...event.dataTransfer.files] : [];
      if (files.length) take(files);
    });
  }
}

/** A file that is dropped beside the boxes would be opened in place of the page. */
export function keepPage() {
  for (const kind of ["dragover", "drop"]) {
    window.addEventListener(kind, (event) => {
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  }
}
