// The types beside the JavaScript that they describe, and a program that uses them. Nothing runs this: it has to compile.

import * as declared from "../olivine/index.js";
// The same files without their types, put there by types.mjs.
import * as written from "../../target/web-types/index.js";
import { ARRAYS } from "../../target/web-types/tensors.js";

/** `true`, or the names that only one of the two has. */
type Same<A, B> = [Exclude<A, B> | Exclude<B, A>] extends [never] ? true : [Exclude<A, B>, Exclude<B, A>];
/** How many parameters there are; in JavaScript all are optional. */
type Count<F extends (...args: never[]) => unknown> = Required<Parameters<F>>["length"];

export const same: {
  exports: Same<keyof typeof written, keyof typeof declared>;
  model: Same<keyof written.Model, keyof declared.Model>;
  languageModel: Same<keyof written.LanguageModel, keyof declared.LanguageModel>;
  wordPiece: Same<keyof written.WordPiece, keyof declared.WordPiece>;
  elementTypes: Same<keyof typeof ARRAYS, declared.ElementType>;
  load: Same<Count<typeof written.load>, Count<typeof declared.load>>;
  loadLanguageModel: Same<Count<typeof written.loadLanguageModel>, Count<typeof declared.loadLanguageModel>>;
  device: Same<Count<typeof written.device>, Count<typeof declared.device>>;
  run: Same<Count<written.Model["run"]>, Count<declared.Model["run"]>>;
  generate: Same<Count<written.LanguageModel["generate"]>, Count<declared.LanguageModel["generate"]>>;
} = {
  exports: true,
  model: true,
  languageModel: true,
  wordPiece: true,
  elementTypes: true,
  load: true,
  loadLanguageModel: true,
  device: true,
  run: true,
  generate: true,
};

export async function program(signal: AbortSignal) {
  const onProgress = ({ loaded, total }: { loaded: number; total?: number }) => console.log(loaded, total);
  const model = await declared.load(new URL("https://example.org/model.onnx"), { device: "webgpu", onProgress, signal });
  const { y } = await model.run({
    x: new Float32Array(4),
    half: new Float16Array(4),
    bits: { data: new Uint16Array(4), dims: [4], type: "f16" },
    pixels: new Uint8ClampedArray(4),
    big: new BigUint64Array(4),
  });
  const [size, type]: [number, declared.ElementType] = [y.dims[0], y.type];
  console.log(size, type, y.data.length, model.summary.parameters, model.inputs[0].dims?.[0]);
  model.free();
  // @ts-expect-error there is no such device
  await declared.load(new ArrayBuffer(4), { device: "npu" });
  // @ts-expect-error plain arrays are no tensors
  await model.run({ x: [1, 2, 3] });

  const chat = await declared.loadLanguageModel(new Blob([]), { context: 4096 });
  for await (const { text, tokens, finish } of chat.generate([{ role: "user", content: "Hello" }], { topK: 40, json: true })) {
    console.log(text.length, tokens, finish === "stop");
  }
  const encoder = await declared.WordPiece.load("[CLS]", { lowercase: false });
  return encoder.encode("text").concat(chat.tokenize("text"));
}
