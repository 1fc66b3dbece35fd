/** Element types by the names that errors and summaries use. */
export type ElementType =
  | "f32" | "f64" | "f16" | "bf16"
  | "i8" | "i16" | "i32" | "i64"
  | "u8" | "u16" | "u32" | "u64"
  | "bool";

/** Float16Array, where the compiler's library has it. */
export type HalfArray = typeof globalThis extends { Float16Array: { prototype: infer Elements } } ? Elements : never;

/**
 * Elements of a tensor. `bool` is a Uint8Array of 0 and 1, `bf16` a Uint16Array of bits. `f16` is a Float16Array where the
 * browser has it, and else a Uint16Array of bits; inputs may be either.
 */
export type Elements =
  | Float32Array | Float64Array | HalfArray
  | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint8ClampedArray | Uint16Array | Uint32Array | BigUint64Array;

/** A tensor: elements in row-major order, and sizes. */
export interface Tensor {
  data: Elements;
  dims: number[];
  /** Follows from `data` and the model's declaration where it is not given. */
  type?: ElementType;
}

/** An output of a run. */
export interface Result extends Tensor {
  type: ElementType;
}

/** An input or output that a model declares. */
export interface Port {
  name: string;
  type: ElementType | string;
  /** A number, a name, or null for a size that a run decides; null where not even their number is declared. */
  dims: (number | string | null)[] | null;
}

/** What a model says of itself. */
export interface Summary {
  name: string;
  producer: string;
  /** Operators and how often each occurs. */
  operators: [string, number][];
  parameters: number;
  parameterBytes: number;
}

export interface LoadOptions {
  /** Where to run; `auto` is WebGPU where the browser offers it, else the CPU. */
  device?: "auto" | "webgpu" | "cpu";
  /** Called while the file arrives; `total` is undefined where the server does not say. */
  onProgress?: (progress: { loaded: number; total?: number }) => void;
  /** Sizes of named dimensions to compile for at once; runs may have others. */
  sizes?: Record<string, number>;
  /** Keep files of URLs in IndexedDB between visits; true unless given. */
  cache?: boolean;
  /** Stops the download. */
  signal?: AbortSignal;
  /** The text of a BERT's `config.json`; the source is then its `model.safetensors`. */
  config?: string;
}

/** A model compiled for a device. */
export class Model {
  private constructor();
  readonly device: "webgpu" | "cpu";
  readonly deviceName: string;
  readonly inputs: Port[];
  readonly outputs: Port[];
  readonly summary: Summary;
  /** Runs on tensors by name. A typed array alone will do where its sizes follow from the declaration. */
  run(feeds: Record<string, Tensor | Elements>): Promise<Record<string, Result>>;
  /** Frees its memory now instead of when it is collected; runs that are under way end first. */
  free(): void;
}

/** Loads an ONNX or GGUF model from a URL, a File or Blob, or bytes, and compiles it for a device. */
export function load(
  source: string | URL | Blob | ArrayBuffer | ArrayBufferView,
  options?: LoadOptions,
): Promise<Model>;

/** A message of a chat; templates may know more fields. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool" | string;
  content: string;
  [field: string]: unknown;
}

export interface GenerateOptions {
  /** Tokens at most; else until the text ends or the context is full. */
  maxTokens?: number;
  /** 0, the default, takes the likeliest token. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  frequencyPenalty?: number;
  presencePenalty?: number;
  /** The same seed draws the same tokens. */
  seed?: number;
  /** Only tokens that continue a JSON object, or JSON that follows a schema. */
  json?: boolean | object;
  /** Ends the text; what waits for it is rejected. */
  signal?: AbortSignal;
}

/** A piece of a text that is generated. */
export interface Piece {
  text: string;
  /** Tokens so far. */
  tokens: number;
  /** In the last piece alone, which has no text: why the text ended. */
  finish?: "stop" | "length" | "context" | "constraint";
  /** In the last piece: tokens of the prompt. */
  promptTokens?: number;
}

/** A language model compiled for a device. Its caches stay between texts: what begins as the text before is not computed again. */
export class LanguageModel {
  private constructor();
  readonly device: "webgpu" | "cpu";
  readonly deviceName: string;
  readonly name: string;
  /** Tokens of a text at most, with those of the prompt. */
  readonly context: number;
  /** Whether it has a template for chats. */
  readonly chats: boolean;
  /** The tokens of a text; control tokens in it count as such unless `special` is false. */
  tokenize(text: string, options?: { special?: boolean }): number[];
  /** The text of tokens, without control tokens. */
  detokenize(ids: Iterable<number>): string;
  /** Continues a text or answers to a chat, one text at a time. Leaving the loop ends it. */
  generate(prompt: string | Message[], options?: GenerateOptions): AsyncGenerator<Piece, void>;
  /** Frees its memory now instead of when it is collected; a text that is under way ends, and what waits for it is rejected. */
  free(): void;
}

/** The tokenizer of a BERT encoder. */
export class WordPiece {
  private constructor();
  /** Reads the text of a `vocab.txt`. `lowercase`, for models that are not cased, is true and `maxTokens` 512 unless given. */
  static load(vocabulary: string, options?: { lowercase?: boolean; maxTokens?: number }): Promise<WordPiece>;
  /** The tokens of a text, from `[CLS]` to `[SEP]`; a longer text is cut. */
  encode(text: string): number[];
  /** Frees its memory now instead of when it is collected. */
  free(): void;
}

/** Loads a language model from a GGUF file with its tokenizer; `context` is how long texts may become. */
export function loadLanguageModel(
  source: string | URL | Blob | ArrayBuffer | ArrayBufferView,
  options?: Pick<LoadOptions, "device" | "onProgress" | "cache" | "signal"> & { context?: number },
): Promise<LanguageModel>;

/** What `load` runs on; `reason` says why that is not WebGPU. */
export function device(
  wanted?: "auto" | "webgpu" | "cpu",
): Promise<{ device: "webgpu" | "cpu"; name: string; reason?: string }>;

/** Loads the WebAssembly module from elsewhere than beside this file. `load` and `device` load it by themselves. */
export function ready(source?: string | URL | Response | BufferSource | WebAssembly.Module): Promise<unknown>;

/** Removes the models that were stored in IndexedDB. */
export function clearCache(): Promise<void>;
