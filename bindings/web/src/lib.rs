//! Olivine for JavaScript: the WebAssembly module under the npm package in `web/olivine`.
//!
//! ```text
//!   Download ── bytes of a file, in this module's memory while they arrive
//!   Session::open(device) ─┬─ compile(Download) ── Model ── run([{name, type, dims, bytes}]) ── the same of the outputs
//!                          └─ compileLanguageModel(Download) ── LanguageModel ── generate(prompt, each) ── pieces of text
//!   WordPiece ── encode(text) ── tokens for a BERT encoder
//! ```
//!
//! The package's JavaScript turns typed arrays into such objects and back. Everything that waits for a device is a promise.

#[cfg(feature = "cases")]
mod cases;
mod language;
mod ports;
mod tensors;
mod wordpiece;

use std::cell::RefCell;

use js_sys::{Array, Function, Object};
use olivine::{CompileOptions, Device, SessionOptions};
use wasm_bindgen::prelude::*;

/// Any error as a JavaScript `Error` with the same message.
fn thrown(error: impl std::fmt::Display) -> JsError {
    JsError::new(&error.to_string())
}

thread_local! {
    /// What JavaScript wants called with the message of a panic.
    static LISTENER: RefCell<Option<Function>> = const { RefCell::new(None) };
}

/// Reports panics, which end the module, before the trap that follows has lost their message.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        report_panic(&text);
        LISTENER.with(|listener| {
            if let Ok(Some(listener)) = listener.try_borrow().as_deref() {
                // Nothing is left to hear that the listener itself failed.
                let _ = listener.call1(&JsValue::NULL, &text.into());
            }
        });
    }));
}

/// Calls `listener` with the message of a panic, after which nothing of this module works any more.
#[wasm_bindgen(js_name = onPanic)]
pub fn on_panic(listener: Function) {
    LISTENER.with(|known| known.replace(Some(listener)));
}

/// Ends the module as a bug would, for the tests: in a future, with a `panic`, or for lack of memory with an `abort`.
#[wasm_bindgen]
#[allow(clippy::panic, clippy::unused_async, reason = "a panic in a future is what it is for")]
pub async fn fail(how: String) {
    match how.as_str() {
        "abort" => std::alloc::handle_alloc_error(std::alloc::Layout::new::<[u64; 1 << 20]>()),
        _ => panic!("on purpose"),
    }
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn report_panic(text: &str);
}

/// The bytes of a file, which may arrive in pieces.
#[wasm_bindgen]
pub struct Download {
    bytes: Vec<u8>,
}

#[wasm_bindgen]
impl Download {
    /// Room for so many bytes; more may come.
    #[wasm_bindgen(constructor)]
    pub fn new(expected: usize) -> Result<Download, JsError> {
        let mut bytes = Vec::new();
        let refused = |_| JsError::new(&format!("out of memory: the file has {expected} bytes"));
        bytes.try_reserve_exact(expected).map_err(refused)?;
        Ok(Download { bytes })
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), JsError> {
        let sum = self.bytes.len().saturating_add(piece.len());
        let refused = |_| JsError::new(&format!("out of memory: the file has at least {sum} bytes"));
        self.bytes.try_reserve(piece.len()).map_err(refused)?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// A device that models are compiled for.
#[wasm_bindgen]
pub struct Session(olivine::Session);

#[wasm_bindgen]
impl Session {
    /// Opens `webgpu` or `cpu`.
    pub async fn open(device: String) -> Result<Session, JsError> {
        let device = match device.as_str() {
            "webgpu" => Device::Wgpu,
            "cpu" => Device::Cpu,
            other => return Err(JsError::new(&format!("device `{other}`: expected webgpu or cpu"))),
        };
        Ok(Session(olivine::Session::open(device, SessionOptions::new()).await.map_err(thrown)?))
    }

    /// The device's name.
    pub fn name(&self) -> String {
        self.0.device_name()
    }

    /// Compiles an ONNX or GGUF file, told apart by its first bytes; `sizes` has the sizes of named dimensions that are known already, by name.
    pub async fn compile(&self, file: Download, sizes: Object) -> Result<Model, JsError> {
        let gguf = file.bytes.starts_with(b"GGUF");
        let read = if gguf { olivine::Model::from_gguf } else { olivine::Model::from_onnx };
        let model = read(file.bytes).map_err(thrown)?;
        self.compiled(model, sizes).await
    }

    /// Compiles a BERT encoder from its `config.json` and `model.safetensors`.
    #[wasm_bindgen(js_name = compileBert)]
    pub async fn compile_bert(
        &self,
        config: String,
        weights: Download,
        sizes: Object,
    ) -> Result<Model, JsError> {
        let bert = olivine::internals::models::Bert::from_bytes(&config, weights.bytes).map_err(thrown)?;
        let model = olivine::Model::from_graph(bert.graph().clone(), bert.params());
        self.compiled(model, sizes).await
    }

    async fn compiled(&self, model: olivine::Model, sizes: Object) -> Result<Model, JsError> {
        let mut options = CompileOptions::new();
        for entry in Object::entries(&sizes) {
            let entry = Array::from(&entry);
            let (name, size) = (entry.get(0).as_string(), entry.get(1).as_f64());
            match (name, size) {
                (Some(name), Some(size)) if size >= 0.0 => options = options.dim(name, size as usize),
                _ => return Err(JsError::new("sizes: expected names with numbers")),
            }
        }
        let executable = self.0.compile_async(&model, &options).await.map_err(thrown)?;
        Ok(Model { model, executable })
    }
}

/// A model compiled for a device.
#[wasm_bindgen]
pub struct Model {
    model: olivine::Model,
    executable: olivine::Executable,
}

#[wasm_bindgen]
impl Model {
    /// Its inputs: name, type and sizes.
    pub fn inputs(&self) -> Result<Array, JsError> {
        ports::list(&self.executable.inputs())
    }

    /// Its outputs.
    pub fn outputs(&self) -> Result<Array, JsError> {
        ports::list(&self.executable.outputs())
    }

    /// Its name for itself, operators with their number, and its parameters and their bytes.
    pub fn summary(&self) -> Result<Object, JsError> {
        ports::summary(&self.model)
    }

    /// Runs on objects with `name`, `type`, `dims` and `bytes`, and resolves to such objects.
    pub async fn run(&self, inputs: Array) -> Result<Array, JsError> {
        let inputs = tensors::given(&inputs)?;
        let named = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let outputs = self.executable.run_async(named).await.map_err(thrown)?;
        tensors::results(&outputs)
    }
}
