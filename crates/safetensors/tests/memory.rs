//! A hostile header must not take many times its own size. The high-water mark is the process's, so this is one test.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine_safetensors::Weights;

/// Kilobytes that this process has held at most.
fn high_water() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
}

#[test]
fn headers_of_98_megabytes_take_little_more_memory_than_their_text() {
    const LENGTH: usize = 98_000_000;
    let entry = |i: usize| format!(r#""{i:x}":{{"dtype":"U8","shape":[],"data_offsets":[0,0]}},"#);
    let many = (0..).map(entry);
    let shapes = std::iter::once(r#""w":{"dtype":"U8","shape":["#.to_string());
    let sizes = shapes.chain(std::iter::repeat("1,".to_string()));
    let nested = std::iter::once(r#""w":{"more":"#.to_string()).chain(std::iter::repeat("[".to_string()));
    let name = std::iter::once("\"".to_string()).chain(std::iter::repeat("name".repeat(1000)));
    let headers: [(&str, Box<dyn Iterator<Item = String>>); 4] = [
        // The one that takes most comes last: the mark only rises.
        ("sizes", Box::new(sizes)),
        ("nesting", Box::new(nested)),
        ("a name", Box::new(name)),
        ("tensors", Box::new(many)),
    ];
    for (what, parts) in headers {
        let mut file = vec![0; 8];
        file.reserve_exact(LENGTH + 8192);
        file.push(b'{');
        for part in parts {
            file.extend_from_slice(part.as_bytes());
            if file.len() > LENGTH {
                break;
            }
        }
        let length = (file.len() - 8) as u64;
        file[..8].copy_from_slice(&length.to_le_bytes());
        let before = high_water();
        let error = Weights::from_bytes(file).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.len() < 2000), "{what}");
        // The kernel counts in batches, so the mark may fall by a little.
        let grown = high_water().saturating_sub(before) / 1024;
        println!("{what}: {grown} MiB");
        assert!(grown < 350, "{what}: {grown} MiB beside the {} of the file", length >> 20);
    }
}
