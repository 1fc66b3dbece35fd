//! Whether a picture of a line of text is upright or upside down: PP-OCR's classifier.
//!
//! ```sh
//! cargo xtask zoo ppocr
//! cargo run --release -p olivine --example image_classification -- target/zoo/ppocr/cls.onnx line.ppm
//! ```

#[path = "../text_detection/picture.rs"]
mod picture;

use olivine::prelude::*;
use picture::Picture;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, files @ ..] = args.as_slice() else { return Err("give a model and .ppm pictures".into()) };

    let session = Session::new(Device::auto()?)?;
    let classifier = session.compile(&Model::load(model)?)?;
    for file in files {
        let picture = Picture::read(&std::fs::read(file)?)?.resized(48, 192);
        let pixels = picture.planes(48, 192, [0.5; 3], [0.5; 3]);
        let out = classifier.run([("x", &Tensor::new([1, 3, 48, 192], pixels)?)])?;
        let (_, classes) = out.iter().next().ok_or("the model has no output")?;
        let [upright, turned] = classes.as_slice::<f32>()? else {
            return Err("two classes were expected".into());
        };
        let (verdict, sure) = if upright >= turned { ("upright", upright) } else { ("upside down", turned) };
        println!("{file}: {verdict} ({:.1} %)", sure * 100.0);
    }
    Ok(())
}
