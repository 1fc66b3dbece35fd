// The digit pad: strokes become 8 by 8 pixels as those of scikit-learn's digits are made, and a classifier reads them.

const SIDE = 32;

export function digits({ engine, device, report, clear }) {
  const pad = document.querySelector("#pad");
  const guesses = document.querySelector("#guesses");
  const words = document.querySelector("#guess");
  let strokes = [];
  /** Strokes that go on, by pointer. */
  const drawn = new Map();
  let model;

  for (let digit = 0; digit < 10; digit++) {
    const row = document.createElement("li");
    row.append(String(digit), document.createElement("i"));
    guesses.append(row);
  }

  const load = async () => {
    await device;
    const source = new URL("digits.onnx", import.meta.url).href;
    return engine.load({ key: "digits", source, options: { sizes: { batch: 1 } } });
  };
  const show = (probabilities) => {
    const best = probabilities?.indexOf(Math.max(...probabilities));
    [...guesses.children].forEach((row, digit) => {
      row.classList.toggle("best", digit === best);
      row.lastChild.style.setProperty("--part", `${100 * (probabilities?.[digit] ?? 0)}%`);
    });
  };

  let busy = false;
  let again = false;
  async function guess() {
    if (busy) return void (again = true);
    const drawing = strokes;
    const pixels = shrink(drawing);
    if (!pixels) return;
    busy = true;
    try {
      model ??= load();
      const { deviceName } = await model;
      const start = performance.now();
      const { probabilities } = await engine.use("run", { key: "digits", feeds: { pixels } });
      const took = performance.now() - start;
      // The pad may have been cleared meanwhile.
      if (drawing === strokes) {
        const values = [...probabilities.data];
        show(values);
        const best = values.indexOf(Math.max(...values));
        words.innerHTML = `<strong>${best}</strong>, ${Math.round(100 * values[best])} % sure, in ${took.toFixed(1)} ms`;
        words.title = deviceName;
        clear();
      }
    } catch (error) {
      model = undefined;
      report(error);
    }
    busy = false;
    if (again) {
      again = false;
      guess();
    }
  }

  const at = (event) => {
    const box = pad.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * 256, ((event.clientY - box.top) / box.height) * 256];
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    const stroke = [at(event)];
    strokes.push(stroke);
    drawn.set(event.pointerId, stroke);
    draw(pad, strokes);
  });
  pad.addEventListener("pointermove", (event) => {
    const stroke = drawn.get(event.pointerId);
    if (!stroke) return;
    stroke.push(at(event));
    draw(pad, strokes);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    pad.addEventListener(kind, (event) => drawn.delete(event.pointerId) && guess());
  }
  document.querySelector("#wipe").addEventListener("click", () => {
    strokes = [];
    drawn.clear();
    draw(pad, strokes);
    show();
    words.textContent = "Draw with a finger or the mouse.";
  });
}

function draw(pad, strokes) {
  const context = pad.getContext("2d");
  context.clearRect(0, 0, pad.width, pad.height);
  trace(context, strokes, 18, getComputedStyle(pad).color);
}

function trace(context, strokes, width, colour) {
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = width;
  context.strokeStyle = colour;
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...stroke[0]);
    for (const point of stroke) context.lineTo(...point);
    context.stroke();
  }
}

// The digits were scanned, scaled to fill 32 by 32 pixels, and counted in blocks of 4 by 4.
function shrink(strokes) {
  const points = strokes.flat();
  if (points.length === 0) return undefined;
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
  const inner = SIDE - 5;
  // A digit's width never fills the square; a lone stroke would otherwise be pulled wide.
  const scale = inner / Math.max(width, height, 1);
  const canvas = new OffscreenCanvas(SIDE, SIDE);
  const context = canvas.getContext("2d");
  context.translate((SIDE - width * scale) / 2, (SIDE - height * scale) / 2);
  context.scale(scale, scale);
  context.translate(-left, -top);
  trace(context, strokes, 4.6 / scale, "#000");
  const ink = context.getImageData(0, 0, SIDE, SIDE).data;
  const pixels = new Float32Array(64);
  for (let y = 0; y < SIDE; y++) {
    for (let x = 0; x < SIDE; x++) {
      pixels[(y >> 2) * 8 + (x >> 2)] += ink[4 * (y * SIDE + x) + 3] / 255;
    }
  }
  return pixels;
}
