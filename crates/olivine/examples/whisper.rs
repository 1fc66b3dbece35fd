//! Speech to text with Whisper: a log-mel front end, an encoder and a decoder with a cache, each an ONNX file.
//!
//! ```sh
//! cargo xtask zoo whisper asrfront speech
//! cargo run --release -p olivine --example whisper -- target/zoo target/zoo/speech/beckett.wav
//! ```
//!
//! A third argument names the device: `cpu`, `vulkan` or `wgpu`.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use olivine::prelude::*;

/// Samples of the half minute that the model hears at a time.
const SAMPLES: usize = 480_000;
/// Start of transcript, English, transcribe, no timestamps.
const PROMPT: [i64; 4] = [50258, 50259, 50359, 50363];
const END_OF_TEXT: i64 = 50257;
const LONGEST: usize = 224;
/// Layers of the decoder, and its heads and their size.
const LAYERS: usize = 4;
const HEADS: [usize; 2] = [6, 64];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(zoo), Some(wav)) = (arguments.next(), arguments.next()) else {
        return Err("give the zoo's folder and a .wav file".into());
    };
    let (zoo, wav) = (PathBuf::from(zoo), PathBuf::from(wav));
    let device = match arguments.next().as_deref() {
        None => Device::auto()?,
        Some("cpu") => Device::Cpu,
        Some("vulkan") => Device::Vulkan,
        Some("wgpu") => Device::Wgpu,
        Some(other) => return Err(format!("no device `{other}`: cpu, vulkan or wgpu").into()),
    };
    let session = Session::new(device)?;
    let compile = |path: &str| -> Result<Executable, Box<dyn Error>> {
        Ok(session.compile(&Model::load(zoo.join(path))?)?)
    };

    let begun = Instant::now();
    let waves = Tensor::new([1, SAMPLES], samples(&wav)?)?;
    let lengths = Tensor::new([1], vec![SAMPLES as i64])?;
    let front = compile("asrfront/whisper80_conv.onnx")?;
    let out = front.run([("waveforms", &waves), ("waveforms_lens", &lengths)])?;
    let features = out.get("features")?.clone();

    let encoder = compile("whisper/encoder_model_quantized.onnx")?;
    let heard = encoder.run_resident([("input_features", &features)])?.take("last_hidden_state")?;
    eprintln!("heard in {:.2} s on {}", begun.elapsed().as_secs_f64(), session.device_name());

    let begun = Instant::now();
    let model = Model::load(zoo.join("whisper/decoder_model_merged_quantized.onnx"))?;
    let options = CompileOptions::new().states(model.cache_pairs()).outputs(["logits"]);
    let decoder = session.compile_with(&model, &options)?;
    let tokens = transcribe(&decoder, &heard)?;
    eprintln!("{} tokens in {:.2} s, compiled while they came", tokens.len(), begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    transcribe(&decoder, &heard)?;
    let each = begun.elapsed().as_secs_f64() * 1e3 / (tokens.len() + 1) as f64;
    eprintln!("again: {each:.2} ms a token, {} plans", decoder.compiled());
    println!("{}", text(&zoo.join("whisper/tokenizer.json"), &tokens)?.trim());
    Ok(())
}

/// Greedy decoding: the prompt fills the caches, then each token goes in with them. Caches and the encoder's states stay on
/// the device, where each token's rows are appended; logits alone are read.
fn transcribe(decoder: &Executable, heard: &DeviceTensor) -> Result<Vec<i64>, Box<dyn Error>> {
    let empty = Tensor::zeros(DType::F32, [1, HEADS[0], 0, HEADS[1]])?;
    let caches = (0..LAYERS).flat_map(|layer| {
        let parts = ["decoder.key", "decoder.value", "encoder.key", "encoder.value"];
        parts.map(|part| format!("past_key_values.{layer}.{part}"))
    });
    let caches: Vec<String> = caches.collect();
    let mut state = decoder.state_from(caches.iter().map(|name| (name.as_str(), &empty)))?;
    let mut next = PROMPT.to_vec();
    let mut tokens = Vec::new();
    for step in 0..LONGEST {
        let ids = Tensor::new([1, next.len()], next.clone())?;
        let cached = Tensor::new([1], vec![step > 0])?;
        let given =
            inputs! { "input_ids" => &ids, "encoder_hidden_states" => heard, "use_cache_branch" => &cached };
        let out = decoder.run_with_state(&mut state, given)?;
        let logits = out.get("logits")?;
        let words = logits.shape()[2];
        let all = logits.as_slice::<f32>()?;
        let last = &all[all.len() - words..];
        let token = (0..words).fold(0, |best, i| if last[i] > last[best] { i } else { best }) as i64;
        if token == END_OF_TEXT {
            break;
        }
        tokens.push(token);
        next = vec![token];
    }
    Ok(tokens)
}

/// Samples of a 16 kHz WAV file of one channel of 16 bits, with silence after them.
fn samples(path: &Path) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read `{}`: {e}", path.display()))?;
    let word = |at: usize| bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    if bytes.get(..4) != Some(b"RIFF") || word(22) != 1 || word(24) != 16_000 || word(34) != 16 {
        return Err("expected a WAV file of one channel of 16 bits at 16 kHz".into());
    }
    let data = bytes.windows(4).position(|w| w == b"data").ok_or("the WAV file has no samples")? + 8;
    let sample = |b: &[u8]| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0;
    let mut samples: Vec<f32> =
        bytes.get(data..).unwrap_or_default().chunks_exact(2).take(SAMPLES).map(sample).collect();
    samples.resize(SAMPLES, 0.0);
    Ok(samples)
}

/// The tokens' text: pieces are bytes, those that do not print written as other characters.
fn text(tokenizer: &Path, tokens: &[i64]) -> Result<String, Box<dyn Error>> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(tokenizer)?)?;
    let vocabulary = json["model"]["vocab"].as_object().ok_or("the tokenizer has no vocabulary")?;
    let pieces: HashMap<i64, &str> =
        vocabulary.iter().filter_map(|(piece, id)| Some((id.as_i64()?, piece.as_str()))).collect();
    let prints = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let hidden = (0..=255u8).filter(|b| !prints(b)).zip(256u32..).map(|(b, c)| (c, b));
    let shown = (0..=255u8).filter(prints).map(|b| (u32::from(b), b));
    let bytes: HashMap<u32, u8> = hidden.chain(shown).collect();
    let all = tokens.iter().filter_map(|t| pieces.get(t)).flat_map(|piece| piece.chars());
    let all: Vec<u8> = all.filter_map(|c| bytes.get(&u32::from(c)).copied()).collect();
    Ok(String::from_utf8_lossy(&all).into_owned())
}
