//! Files that are right, and files that are wrong in every way.

use super::*;

fn file(header: &str, elements: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat()
}

#[test]
fn tensors_come_back() {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let elements: Vec<u8> = [1f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    let weights = Weights::from_bytes(file(header, &elements)).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["a"]);
    assert_eq!(weights.tensor("a").unwrap().as_slice::<f32>().unwrap(), &[1.0, -2.5]);
    assert!(weights.tensor("b").unwrap_err().to_string().contains("did you mean `a`"));
}

#[test]
fn nonsense_is_refused_by_name() {
    let of = |entry: &str| file(&format!(r#"{{"w":{entry}}}"#), &[0; 16]);
    for (bytes, words) in [
        (vec![1, 2, 3], "shorter than 8"),
        (u64::MAX.to_le_bytes().to_vec(), "claims"),
        (file("[]", &[]), "JSON object"),
        (file("{", &[]), "its header"),
        (of(r#"{"dtype":"F32","shape":[4],"data_offsets":[0,32]}"#), "0..32 of 16"),
        (of(r#"{"dtype":"F32","shape":[4],"data_offsets":[8,4]}"#), "8..4"),
        (of(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,16]}"#), "takes 12 bytes"),
        (of(r#"{"dtype":"F32","shape":[18446744073709551615,8],"data_offsets":[0,16]}"#), "too large"),
        (of(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,16]}"#), "tensor `w`"),
        (of(r#"{"shape":[4],"data_offsets":[0,16]}"#), "missing field `dtype`"),
    ] {
        let error = Weights::from_bytes(bytes).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(words), "`{error}` should say `{words}`");
    }
}

/// A header of `name: bytes from..to` as u8 vectors.
fn vectors(places: &[(&str, usize, usize)]) -> String {
    let entry = |(name, from, to): &(&str, usize, usize)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
    };
    format!("{{{}}}", places.iter().map(entry).collect::<Vec<_>>().join(","))
}

fn refused(bytes: Vec<u8>, words: &str) {
    let error = Weights::from_bytes(bytes).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains(words), "`{error}` should say `{words}`");
}

/// A tensor's name, and where its bytes begin and end.
type Named = (&'static str, usize, usize);

#[test]
fn tensors_must_cover_the_file_once() {
    let read = |places: &[(&str, usize, usize)]| Weights::from_bytes(file(&vectors(places), &[7; 8]));
    let weights = read(&[("b", 4, 8), ("none", 4, 4), ("a", 0, 4), ("last", 8, 8)]).unwrap();
    assert_eq!(weights.tensor("none").unwrap().shape().numel(), 0);
    assert_eq!(weights.tensor("b").unwrap().as_slice::<u8>().unwrap(), [7; 4]);
    let cases: [(&[Named], &str); 9] = [
        (&[("a", 0, 5), ("b", 4, 8)], "tensor `b`: its first byte, 4, belongs to another"),
        (&[("a", 0, 8), ("b", 0, 8)], "belongs to another"),
        (&[("a", 0, 8), ("b", 2, 4)], "belongs to another"),
        (&[("a", 0, 3), ("b", 4, 8)], "tensor `b`: 1 bytes before it"),
        (&[("a", 1, 8)], "1 bytes before it"),
        (&[("a", 0, 6)], "its last 2 bytes"),
        (&[], "its last 8 bytes"),
        (&[("a", 0, 4), ("a", 4, 8)], "`a` is there twice"),
        (&[("a", 0, 8), ("a", 0, 8)], "`a` is there twice"),
    ];
    for (places, words) in cases {
        refused(file(&vectors(places), &[7; 8]), words);
    }
}

#[test]
fn the_fields_of_a_header_are_of_the_formats_types() {
    let of = |entry: &str| file(&format!(r#"{{"w":{entry}}}"#), &[0; 8]);
    for (bytes, words) in [
        (of(r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#), "dtype `F31` is unknown"),
        (of(r#"{"dtype":"U64","shape":[2],"data_offsets":[0,8]}"#), "U64[2] takes 16 bytes"),
        (of(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,8]}"#), "whole number of bytes"),
        (of(r#"{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), "duplicate field"),
        (of(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}"#), "tensor `w`"),
        (of(r#"{"dtype":"F32","shape":[2],"data_offsets":[0]}"#), "tensor `w`"),
        (of(r#"{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}"#), "tensor `w`"),
        (of(r#"{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}"#), "8 dimensions"),
        (of(r#"{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"w":0"#), "`w` is there twice"),
        (file(r#"{"__metadata__":{"a":1}}"#, &[]), "its header"),
        (file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "twice"),
    ] {
        refused(bytes, words);
    }
    // Types that nothing here holds are listed, and refused when they are asked for.
    let header = r#"{"__metadata__":null,"w":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}}"#;
    let weights = Weights::from_bytes(file(header, &[0; 8])).unwrap();
    assert!(weights.ty("w").is_none());
    assert!(weights.tensor("w").unwrap_err().to_string().contains("U64 cannot be held"));
}

#[test]
fn files_of_other_formats_are_named() {
    refused(b"GGUF\x03\0\0\0\0\0\0\0".to_vec(), "a GGUF file");
    refused(b"PK\x03\x04\0\0\0\0\0\0\0\0".to_vec(), "a ZIP archive");
    refused(b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "git-lfs pointer");
}

#[test]
fn bools_are_0_or_1() {
    let header = r#"{"w":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#;
    let weights = Weights::from_bytes(file(header, &[1, 2])).unwrap();
    assert!(weights.tensor("w").unwrap_err().to_string().contains("0 or 1"));
}

#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_refused() {
    for path in ["/dev/zero", "/"] {
        let error = Weights::load(path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("not a plain file"), "{error}");
    }
}

/// Numbers that look random, the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

#[test]
fn broken_files_are_refused_or_right_and_never_panic() {
    let good = file(&vectors(&[("a", 0, 3), ("b", 3, 3), ("c", 3, 8)]), &[7; 8]);
    let mut random = Random(1);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
            match random.below(5) {
                0 => bytes[from] = random.below(256) as u8,
                1 => bytes[from] ^= 1 << random.below(8),
                2 => bytes.truncate(from + 1),
                3 => bytes.insert(from, b"0123456789[]{},:\"-"[random.below(18)]),
                _ => bytes.copy_within(from.min(to)..from.max(to), 0),
            }
        }
        let Ok(weights) = Weights::from_bytes(bytes) else {
            refused += 1;
            continue;
        };
        read += 1;
        for name in weights.names().map(str::to_string).collect::<Vec<_>>() {
            if let Some(ty) = weights.ty(&name) {
                let _ = weights.tensor(&name).map(|tensor| assert_eq!(tensor.ty(), ty));
            }
        }
    }
    assert!(read > 100 && refused > 10_000, "{read} were read, {refused} refused");
}

#[test]
fn tensors_are_parts_of_the_file_where_their_elements_are_aligned() {
    let elements: Vec<u8> = [1f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).chain([1, 0]).collect();
    for padding in 0..8 {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]}}"#;
        let header = header.to_string() + &" ".repeat(padding);
        let weights = Weights::from_bytes(file(&header, &elements)).unwrap();
        let [a, again] = [(); 2].map(|()| weights.tensor("a").unwrap());
        assert_eq!(a.as_slice::<f32>().unwrap(), [1.0, -2.5]);
        let places = [&a, &again].map(|tensor| tensor.as_slice::<f32>().unwrap().as_ptr());
        let start = weights.bytes.as_ptr().wrapping_add(8 + header.len());
        let aligned = start.cast::<f32>().is_aligned();
        assert_eq!(places[0] == places[1], aligned, "padding {padding}");
        assert_eq!(places[0] == start.cast(), aligned, "padding {padding}");
        assert_eq!(weights.tensor("b").unwrap().as_slice::<bool>().unwrap(), [true, false]);
        // The file lives as long as its tensors.
        drop(weights);
        assert_eq!(again.as_slice::<f32>().unwrap(), [1.0, -2.5]);
    }
}
