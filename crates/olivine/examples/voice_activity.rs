//! When somebody speaks: Silero's detector over a recording of 16 kHz, frame by frame, its state carried along.
//!
//! ```sh
//! cargo xtask zoo silero speech
//! cargo run --release -p olivine --example voice_activity -- \
//!     target/zoo/silero/silero_vad.onnx target/zoo/speech/beckett.wav
//! ```

use olivine::prelude::*;

/// Samples of a frame, and those of the frame before it that the model sees again.
const FRAME: usize = 512;
const CONTEXT: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, recording] = args.as_slice() else { return Err("give a model and a .wav file".into()) };
    let samples = wav(&std::fs::read(recording)?).ok_or("not a .wav file of 16-bit samples")?;

    let session = Session::new(Device::auto()?)?;
    let detector = session.compile(&Model::load(model)?)?;

    let rate = Tensor::scalar(16000i64);
    let mut state = Tensor::zeros(DType::F32, [2, 1, 128])?;
    let mut spoken = Vec::new();
    let mut context = vec![0f32; CONTEXT];
    for frame in samples.chunks_exact(FRAME) {
        let input = Tensor::new([1, CONTEXT + FRAME], [context.as_slice(), frame].concat())?;
        let out = detector.run([("input", &input), ("state", &state), ("sr", &rate)])?;
        spoken.push(out.get("output")?.as_slice::<f32>()?[0] > 0.5);
        state = out.get("stateN")?.clone();
        context.copy_from_slice(&frame[FRAME - CONTEXT..]);
    }
    println!("{} of {} frames are speech", spoken.iter().filter(|s| **s).count(), spoken.len());
    let seconds = |frame: usize| (frame * FRAME) as f64 / 16000.0;
    let mut start = None;
    for (i, speech) in spoken.iter().copied().chain([false]).enumerate() {
        match (speech, start) {
            (true, None) => start = Some(i),
            (false, Some(from)) => {
                println!("{:7.2} s to {:.2} s", seconds(from), seconds(i));
                start = None;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The samples of a .wav file of one channel and 16 bits.
fn wav(bytes: &[u8]) -> Option<Vec<f32>> {
    let start = bytes.windows(4).position(|w| w == b"data")? + 8;
    let number = |b: &[u8]| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0;
    Some(bytes.get(start..)?.chunks_exact(2).map(number).collect())
}
