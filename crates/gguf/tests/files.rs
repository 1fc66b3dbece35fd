//! Files written here, and files that others would write wrongly.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use olivine_gguf::{Error, Gguf, TensorKind, Value, Writer};
use proptest::prelude::*;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("olivine-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A value of every type.
fn values() -> Vec<Value> {
    vec![
        Value::from(200u8),
        Value::from(-100i8),
        Value::from(60_000u16),
        Value::from(-30_000i16),
        Value::from(4_000_000_000u32),
        Value::from(-2_000_000_000i32),
        Value::from(1.5f32),
        Value::from(true),
        Value::from("tёxt"),
        Value::from(u64::MAX),
        Value::from(i64::MIN),
        Value::from(-0.1f64),
        Value::from(vec![1u8, 2]),
        Value::from(vec![-1i8]),
        Value::from(vec![1u16, 2]),
        Value::from(vec![-1i16]),
        Value::from(vec![1u32, 2]),
        Value::from(vec![-1i32]),
        Value::from(vec![0.5f32, f32::INFINITY]),
        Value::from(vec![true, false]),
        Value::from(vec!["a".to_string(), String::new()]),
        Value::from(vec![1u64]),
        Value::from(vec![-1i64]),
        Value::from(vec![0.5f64]),
        Value::from(Vec::<u32>::new()),
        Value::Arrays(vec![Value::from(vec![1u8]), Value::Arrays(vec![Value::from(vec!["x".to_string()])])]),
    ]
}

fn all() -> Writer {
    let mut writer = Writer::new();
    for (i, value) in values().into_iter().enumerate() {
        writer.metadata(format!("key.{i}"), value).unwrap();
    }
    for (i, kind) in TensorKind::all().enumerate() {
        let shape = [3, 2 * kind.block_elements()];
        let bytes = (0..kind.bytes_of(&shape).unwrap()).map(|b| (b * 7 + i) as u8).collect();
        writer.tensor(format!("tensor.{i}"), kind, &shape, bytes).unwrap();
    }
    writer.tensor("empty", TensorKind::F16, &[0, 5], vec![]).unwrap();
    writer.tensor("scalar", TensorKind::F32, &[], 2.5f32.to_le_bytes().to_vec()).unwrap();
    writer
}

#[test]
fn what_is_written_is_read_again() {
    let file = Gguf::from_bytes(all().to_bytes().unwrap()).unwrap();
    assert_eq!(file.version(), 3);
    for (i, value) in values().iter().enumerate() {
        assert_eq!(file.metadata().get(&format!("key.{i}")), Some(value));
    }
    for (i, kind) in TensorKind::all().enumerate() {
        let tensor = file.tensor(&format!("tensor.{i}")).unwrap();
        assert_eq!((tensor.kind, tensor.shape.as_slice()), (kind, [3, 2 * kind.block_elements()].as_slice()));
        let bytes = file.bytes(tensor);
        assert!(bytes.iter().enumerate().all(|(b, &byte)| byte == (b * 7 + i) as u8), "{kind}");
        assert_eq!(file.decode(tensor).unwrap().len(), tensor.elements(), "{kind}");
    }
    assert_eq!(file.decode(file.tensor("scalar").unwrap()).unwrap(), [2.5]);
    assert_eq!(file.bytes(file.tensor("empty").unwrap()), []);
}

#[test]
fn no_beginning_of_a_file_is_a_file() {
    let bytes = all().to_bytes().unwrap();
    let head = Gguf::from_bytes(bytes.clone()).is_ok();
    assert!(head);
    for end in (0..bytes.len() - 32).step_by(if bytes.len() > 20_000 { 7 } else { 1 }) {
        assert!(Gguf::from_bytes(bytes[..end].to_vec()).is_err(), "{end} of {} bytes", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn changed_bytes_are_an_error_or_a_file(changes in prop::collection::vec((0usize..2500, any::<u8>()), 1..6)) {
        let mut bytes = all().to_bytes().unwrap();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(file) = Gguf::from_bytes(bytes) {
            for tensor in file.tensors() {
                let _ = file.decode(tensor);
            }
        }
    }
}

/// A file by hand, in any version.
struct Hand(Vec<u8>, bool);

impl Hand {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        let mut hand = Hand(b"GGUF".to_vec(), version == 1);
        hand.0.extend(version.to_le_bytes());
        hand.length(tensors).length(keys)
    }

    fn length(mut self, n: u64) -> Self {
        match self.1 {
            true => self.0.extend((n as u32).to_le_bytes()),
            false => self.0.extend(n.to_le_bytes()),
        }
        self
    }

    fn text(self, text: &str) -> Self {
        let mut hand = self.length(text.len() as u64);
        hand.0.extend(text.as_bytes());
        hand
    }

    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    /// A tensor whose sizes are innermost first.
    fn tensor(self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> Self {
        let mut hand = self.text(name).u32(sizes.len() as u32);
        for size in sizes {
            hand = hand.length(*size);
        }
        hand.u32(kind).u64(offset)
    }

    fn data(mut self, bytes: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self
    }

    fn error(self) -> String {
        Gguf::from_bytes(self.0).err().map(|e| e.to_string()).unwrap_or_default()
    }
}

#[test]
fn every_version_is_read() {
    for version in 1..=3 {
        let hand = Hand::new(version, 1, 1).text("general.name").u32(8).text("small");
        let file = Gguf::from_bytes(hand.tensor("w", &[8, 2], 0, 0).data(64).0).unwrap();
        assert_eq!(file.metadata().string("general.name").unwrap(), "small");
        assert_eq!(file.tensors()[0].shape, [2, 8]);
        assert_eq!(file.version(), version);
    }
}

#[test]
fn lies_are_named() {
    let one = |sizes: &[u64], kind, offset, data| {
        Hand::new(3, 1, 0).tensor("w", sizes, kind, offset).data(data).error()
    };
    let huge = 1u64 << 63;
    let key = |value: fn(Hand) -> Hand| value(Hand::new(3, 0, 1).text("some.key")).error();
    let cases: Vec<(String, &[&str])> = vec![
        (Hand(b"GGML".to_vec(), false).u32(3).error(), &["not with GGUF"]),
        (Hand(b"GGUF".to_vec(), false).u32(3u32.swap_bytes()).error(), &["big endian"]),
        (Hand::new(4, 0, 0).error(), &["version 4"]),
        (Hand::new(3, u64::MAX, 0).error(), &["18446744073709551615 tensors"]),
        (Hand::new(3, 0, u64::MAX).error(), &["metadata entries", "18446744073709551615"]),
        (Hand::new(3, 0, 1).length(huge).data(64).error(), &["a metadata key"]),
        (one(&[8], 0, 0, 16), &["`w`", "32 bytes at 0"]),
        (one(&[8], 0, 8, 64), &["`w`", "not a multiple of 32"]),
        (one(&[8], 0, huge, 64), &["`w`", "9223372036854775808"]),
        (one(&[8], 0, u64::MAX - 31, 64), &["`w`"]),
        (one(&[huge, 2], 0, 0, 64), &["`w`", "more bytes than memory"]),
        (one(&[8, 8, 8, 8, 8, 8, 8, 8, 8], 0, 0, 64), &["`w`", "9 sizes"]),
        (one(&[33], 2, 0, 64), &["`w`", "q4_0", "33"]),
        (one(&[8], 99, 0, 64), &["`w`", "99"]),
        (one(&[8], 4, 0, 64), &["`w`", "Q4_2"]),
        (
            Hand::new(3, 2, 0).tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32).data(64).error(),
            &["`a`", "twice"],
        ),
        (
            Hand::new(3, 2, 0).tensor("a", &[16], 0, 0).tensor("b", &[8], 0, 32).data(64).error(),
            &["`b`", "overlaps `a`"],
        ),
        (key(|h| h.u32(77)), &["some.key", "77"]),
        (key(|h| h.u32(9).u32(4).length(1 << 62)), &["some.key", "4611686018427387904"]),
        (key(|h| h.u32(9).u32(8).length(1 << 40)), &["some.key"]),
        (
            key(|h| {
                h.u32(9)
                    .u32(9)
                    .length(1)
                    .u32(9)
                    .length(1)
                    .u32(9)
                    .length(1)
                    .u32(9)
                    .length(1)
                    .u32(9)
                    .length(1)
                    .u32(9)
            }),
            &["some.key", "nested"],
        ),
        (key(|h| h.u32(7).u32(5)), &["some.key", "bool"]),
        (Hand::new(3, 0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1).error(), &["`k`", "twice"]),
    ];
    for (i, (error, words)) in cases.iter().enumerate() {
        assert!(!error.is_empty(), "case {i} is read");
        for word in *words {
            assert!(error.contains(word), "case {i}: `{error}` does not say `{word}`");
        }
    }
    for alignment in [0, 3, 1 << 30] {
        let hand = Hand::new(3, 0, 1).text("general.alignment").u32(4).u32(alignment);
        assert!(hand.error().contains("general.alignment"));
    }
    // A value of any size has a short message.
    let mut hand = Hand::new(3, 0, 1).text("general.alignment").u32(9).u32(4).length(100_000);
    for i in 0..100_000 {
        hand = hand.u32(i);
    }
    let error = hand.error();
    assert!(error.contains("[100000 of u32] is not a power of two") && error.len() < 300, "{error}");
    let error = Hand::new(3, 0, 1).text("general.alignment").u32(8).text(&"x".repeat(100_000)).error();
    assert!(error.contains("general.alignment") && error.len() < 600, "{} bytes", error.len());
}

fn part(folder: &Path, name: &str, number: u16, count: u16, tensors: i32, holds: &str) -> PathBuf {
    let mut writer = Writer::new();
    writer.metadata("split.no", Value::from(number)).unwrap();
    writer.metadata("split.count", Value::from(count)).unwrap();
    writer.metadata("split.tensors.count", Value::from(tensors)).unwrap();
    let bytes = f32::from(number).to_le_bytes().to_vec();
    writer.tensor(holds, TensorKind::F32, &[1], bytes).unwrap();
    let path = folder.join(name);
    writer.save(&path).unwrap();
    path
}

#[test]
fn parts_are_opened_together_from_any_of_them() {
    let folder = Folder::new("parts");
    let paths: Vec<PathBuf> = (0..3)
        .map(|i| part(&folder.0, &format!("m-0000{}-of-00003.gguf", i + 1), i, 3, 3, &format!("t{i}")))
        .collect();
    for path in &paths {
        let file = Gguf::open(path).unwrap();
        assert_eq!(file.tensors().len(), 3);
        for (i, tensor) in file.tensors().iter().enumerate() {
            assert_eq!(
                (tensor.name.as_str(), file.decode(tensor).unwrap()),
                (format!("t{i}").as_str(), vec![i as f32])
            );
        }
    }
    std::fs::remove_file(&paths[1]).unwrap();
    assert!(matches!(Gguf::open(&paths[0]), Err(Error::File { path, .. }) if path == paths[1]));
}

#[test]
fn parts_that_do_not_fit_together_are_named() {
    let folder = Folder::new("misfits");
    let named = |text: &str, words: &str| assert!(text.contains(words), "`{text}` does not say `{words}`");
    let open = |path: &Path| Gguf::open(path).err().map(|e| e.to_string()).unwrap_or_default();
    let first = part(&folder.0, "a-00001-of-00002.gguf", 0, 2, 2, "t");
    part(&folder.0, "a-00002-of-00002.gguf", 0, 2, 2, "u"); // says that it is the first again
    named(&open(&first), "part 1 of 2");
    part(&folder.0, "a-00002-of-00002.gguf", 1, 2, 2, "t");
    named(&open(&first), "two parts");
    part(&folder.0, "a-00002-of-00002.gguf", 1, 3, 2, "u");
    named(&open(&first), "of 3");
    part(&folder.0, "a-00001-of-00002.gguf", 0, 2, 9, "t");
    part(&folder.0, "a-00002-of-00002.gguf", 1, 2, 9, "u");
    named(&open(&first), "claims 9 tensors");
    named(&open(&part(&folder.0, "other.gguf", 0, 2, 2, "t")), "-00001-of-00002.gguf");
    named(&open(&part(&folder.0, "b-00003-of-00002.gguf", 2, 2, 2, "t")), "part 3 of 2");
}

#[test]
fn what_no_reader_takes_is_not_written() {
    let mut writer = Writer::new();
    assert!(writer.tensor("w", TensorKind::F32, &[2], vec![0; 7]).is_err());
    assert!(writer.tensor("w", TensorKind::F32, &[1, 1, 1, 1, 1], vec![0; 4]).is_err());
    assert!(writer.tensor("w", "q4_k".parse().unwrap(), &[255], vec![0; 144]).is_err());
    writer.tensor("w", TensorKind::F32, &[2], vec![0; 8]).unwrap();
    assert!(writer.tensor("w", TensorKind::F32, &[2], vec![0; 8]).is_err());
    writer.metadata("k", Value::from(1u8)).unwrap();
    assert!(writer.metadata("k", Value::from(1u8)).is_err());
    assert!(writer.metadata("general.alignment", Value::from(64u32)).is_err());
    assert!(writer.metadata("bad", Value::Arrays(vec![Value::from(1u8)])).is_err());
}

#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_not_replaced() {
    let folder = Folder::new("socket");
    let path = folder.0.join("socket.gguf");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Writer::new().save(&path).unwrap_err();
    assert!(
        matches!(&error, Error::Write { source, .. } if source.to_string().contains("plain file")),
        "{error}"
    );
    assert!(!path.metadata().unwrap().is_file());
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}
