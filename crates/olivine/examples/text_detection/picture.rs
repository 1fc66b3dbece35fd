//! Pictures in binary PPM, as tensors.

/// Three bytes a pixel, row by row.
pub(crate) struct Picture {
    pub(crate) height: usize,
    pub(crate) width: usize,
    bytes: Vec<u8>,
}

impl Picture {
    /// Reads `P6`, the sizes, the largest value and the bytes; comments are not taken.
    pub(crate) fn read(file: &[u8]) -> Result<Picture, String> {
        let mut rest = file;
        let mut word = || {
            let start = rest.iter().position(|b| !b.is_ascii_whitespace())?;
            let end = start + rest[start..].iter().position(u8::is_ascii_whitespace)?;
            let word = std::str::from_utf8(&rest[start..end]).ok()?;
            rest = &rest[end..];
            Some(word)
        };
        if word() != Some("P6") {
            return Err("not a binary PPM file".into());
        }
        let mut number = || word().and_then(|w| w.parse::<usize>().ok());
        let (Some(width), Some(height), Some(255)) = (number(), number(), number()) else {
            return Err("its header has no sizes, or another largest value than 255".into());
        };
        let needed = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        match needed.and_then(|n| rest.get(1..)?.get(..n)) {
            Some(bytes) if !bytes.is_empty() => Ok(Picture { height, width, bytes: bytes.to_vec() }),
            _ => Err(format!("there are too few bytes for {width} by {height} pixels")),
        }
    }

    /// Its channels one after another, shifted and scaled, padded with black on the right and below, or cut.
    pub(crate) fn planes(
        &self,
        height: usize,
        width: usize,
        mean: [f32; 3],
        deviation: [f32; 3],
    ) -> Vec<f32> {
        let mut planes = Vec::with_capacity(3 * height * width);
        for channel in 0..3 {
            for y in 0..height {
                for x in 0..width {
                    let inside = y < self.height && x < self.width;
                    let byte = if inside { self.bytes[(y * self.width + x) * 3 + channel] } else { 0 };
                    planes.push((f32::from(byte) / 255.0 - mean[channel]) / deviation[channel]);
                }
            }
        }
        planes
    }

    /// The picture in another size: every pixel is the nearest one.
    #[allow(dead_code, reason = "not every example needs it")]
    pub(crate) fn resized(&self, height: usize, width: usize) -> Picture {
        let mut bytes = Vec::with_capacity(3 * height * width);
        for y in 0..height {
            for x in 0..width {
                let from = (y * self.height / height * self.width + x * self.width / width) * 3;
                bytes.extend_from_slice(&self.bytes[from..from + 3]);
            }
        }
        Picture { height, width, bytes }
    }
}
