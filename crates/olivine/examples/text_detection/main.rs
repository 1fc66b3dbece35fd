//! Where in a picture there is text: PP-OCR's detector, on a picture of any size.
//!
//! ```sh
//! cargo xtask zoo ppocr
//! cargo run --release -p olivine --example text_detection -- target/zoo/ppocr/det.onnx page.ppm
//! ```
//!
//! Pictures are binary PPM, which `convert page.png page.ppm` (ImageMagick) makes of any other.

mod picture;

use olivine::prelude::*;
use picture::Picture;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, file] = args.as_slice() else { return Err("give a model and a .ppm picture".into()) };
    let picture = Picture::read(&std::fs::read(file)?)?;

    let session = Session::new(Device::auto()?)?;
    let detector = session.compile(&Model::load(model)?)?;

    // The network halves its picture five times, so both sides are multiples of 32.
    let (height, width) = (picture.height.next_multiple_of(32), picture.width.next_multiple_of(32));
    let pixels = picture.planes(height, width, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let out = detector.run([("x", &Tensor::new([1, 3, height, width], pixels)?)])?;
    let (_, map) = out.iter().next().ok_or("the model has no output")?;
    for [top, left, bottom, right] in regions(map.as_slice::<f32>()?, width) {
        println!("{left},{top} to {right},{bottom}");
    }
    Ok(())
}

/// The boxes around connected pixels that are text with a probability above 0.3; specks are left out.
fn regions(map: &[f32], width: usize) -> Vec<[usize; 4]> {
    let mut seen: Vec<bool> = map.iter().map(|p| *p <= 0.3).collect();
    let mut found = Vec::new();
    for start in 0..map.len() {
        if seen[start] {
            continue;
        }
        seen[start] = true;
        let (mut open, mut count) = (vec![start], 0);
        let mut limits = [usize::MAX, usize::MAX, 0, 0];
        while let Some(at) = open.pop() {
            let (y, x) = (at / width, at % width);
            limits = [limits[0].min(y), limits[1].min(x), limits[2].max(y), limits[3].max(x)];
            count += 1;
            let beside = [(x > 0).then(|| at - 1), (x + 1 < width).then(|| at + 1)];
            let above_and_below = [at.checked_sub(width), (at + width < map.len()).then(|| at + width)];
            for next in beside.into_iter().chain(above_and_below).flatten() {
                if !seen[next] {
                    seen[next] = true;
                    open.push(next);
                }
            }
        }
        if count >= 16 {
            found.push(limits);
        }
    }
    found
}
