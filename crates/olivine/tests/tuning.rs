//! Records of measured choices: every kernel that one may pick is right, and none that is made up is picked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use olivine::internals::SessionExt as _;
use olivine::internals::gpu::{Decision, Record, tuning_file};
use olivine::{CompileOptions, Device, PipelineCache, Session, SessionOptions, TuneBy};
use olivine_cases::{Backend, Bound, Case, check, normal, sum_of, warnings, whole};
use olivine_ir::DType::*;
use olivine_ir::op::{Attention, HeadLayout};
use olivine_ir::{Graph, Tensor};

fn open(device: Device, tuning: TuneBy) -> Session {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).tuning(tuning);
    Session::with_options(device, options).expect("a device; `apt-get install mesa-vulkan-drivers`")
}

fn decisions(session: &Session, graph: &Graph) -> Vec<Decision> {
    let compiled = session.explain(graph).unwrap();
    session.program(&compiled).unwrap().expect("a GPU").decisions
}

/// Compiles with the i-th candidate of every choice.
struct Picking<'a> {
    session: &'a Session,
    number: usize,
}

impl Backend for Picking<'_> {
    fn name(&self) -> &str {
        "picking"
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let mut record = Record::default();
        for made in decisions(self.session, graph) {
            let candidate = &made.candidates[self.number % made.candidates.len()];
            record.set(made.family, &made.class, candidate);
        }
        let options = CompileOptions::new().tuning(Arc::new(record));
        let executable = self.session.compile_with(graph, &options).map_err(|e| e.to_string())?;
        executable.set_params(params.iter().cloned()).map_err(|e| e.to_string())?;
        let inputs = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        Ok(executable.run(inputs).map_err(|e| e.to_string())?.into_tensors())
    }
}

/// Runs a case with each of its candidates; gives their number.
fn every_candidate(session: &Session, case: &Case) -> usize {
    let made = decisions(session, &case.graph().unwrap());
    let most = made.iter().map(|d| d.candidates.len()).max().unwrap_or(0);
    for number in 0..most {
        let outcome = check(case, &Picking { session, number });
        let picked: Vec<&String> = made.iter().map(|d| &d.candidates[number % d.candidates.len()]).collect();
        assert!(outcome.passed(), "{} with {picked:?}: {outcome}", case.name);
    }
    most
}

#[test]
fn every_candidate_for_a_matmul_is_right() {
    let vulkan = open(Device::Vulkan, TuneBy::Shipped);
    let product = |m: usize, n: usize, k: usize, dtype| {
        Case::new("product", format!("{dtype}-{m}x{n}x{k}"), dtype, whole(-2, 2), Bound::Exact, move |g| {
            let (x, w) = (g.x([m, k])?, g.weight([k, n], whole(-2, 2))?);
            g.matmul(x, w)
        })
    };
    // Larger than the largest tile with rests in every direction; a sum in parts; doubles; few rows either way.
    assert!(every_candidate(&vulkan, &product(130, 133, 50, F32)) >= 8);
    assert!(every_candidate(&vulkan, &product(33, 64, 520, F32)) >= 8);
    assert!(every_candidate(&vulkan, &product(70, 36, 20, F64)) >= 3);
    assert!(every_candidate(&vulkan, &product(3, 40, 600, F32)) >= 2);
    let turned = Case::new("product", "turned", F32, whole(-2, 2), Bound::Exact, |g| {
        let (x, w) = (g.x([2, 2100])?, g.weight([24, 2100], whole(-2, 2))?);
        let w = g.transpose(w, &[1, 0])?;
        g.matmul(x, w)
    });
    assert!(every_candidate(&vulkan, &turned) >= 4);
    let wgpu = open(Device::Wgpu, TuneBy::Shipped);
    assert!(every_candidate(&wgpu, &product(40, 70, 33, F32)) >= 4);
}

#[test]
fn every_candidate_for_an_attention_is_right() {
    let vulkan = open(Device::Vulkan, TuneBy::Shipped);
    let attention = |queries: usize, keys: usize, causal: bool| {
        let name = format!("{queries}x{keys}-{causal}");
        Case::new("attention", name, F32, normal(), Bound::Scaled(32.0), move |g| {
            let (q, k) = (g.x([1, 2, queries, 20])?, g.x([1, 1, keys, 20])?);
            let v = g.x([1, 1, keys, 20])?;
            let spec = Attention { causal, ..Attention::new(HeadLayout::Bhsd) };
            g.attention(spec, q, k, v, &[])
        })
    };
    assert!(every_candidate(&vulkan, &attention(40, 50, true)) >= 8);
    assert!(every_candidate(&vulkan, &attention(1, 300, false)) >= 4);
}

#[test]
fn a_record_that_is_made_up_changes_nothing() {
    let case = Case::new("product", "product", F32, normal(), sum_of(64), |g| {
        let (x, w) = (g.x([64, 64])?, g.w([64, 64])?);
        g.matmul(x, w)
    });
    let graph = case.graph().unwrap();
    let plain = open(Device::Vulkan, TuneBy::Given(Arc::default()));
    let [made] = decisions(&plain, &graph).try_into().expect("one choice");
    assert_eq!(made.chosen, made.default);
    let hostile = [
        "tiles 4294967296x99999999999x0/0x0 s0".to_string(),
        "tiles 128x128x16/8x8 s0".into(),
        "tiles 128x128x16/8x8 s18446744073709551615".into(),
        "matrices 128x128/64x64 s1".into(),
        "dots w3 s1".into(),
        "sweep s1".into(),
        "16/2x2 4+32/u1 s1".into(),
        String::new(),
        "%s%n \u{202e}".into(),
        "x".repeat(100_000),
    ];
    for config in hostile {
        let mut record = Record::default();
        record.set(made.family, &made.class, &config);
        record.set("attention", &made.class, &made.candidates[0]);
        let session = open(Device::Vulkan, TuneBy::Given(Arc::new(record)));
        assert_eq!(decisions(&session, &graph)[0].chosen, made.default, "{config}");
    }
    let other = made.candidates.iter().find(|c| **c != made.default).expect("a choice");
    let mut record = Record::default();
    record.set(made.family, &made.class, other);
    let session = open(Device::Vulkan, TuneBy::Given(Arc::new(record)));
    assert_eq!(&decisions(&session, &graph)[0].chosen, other);
}

fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn kept_in(dir: &Path) -> Session {
    let pipeline_cache = PipelineCache::Folder(dir.to_path_buf());
    let options = SessionOptions::new().pipeline_cache(pipeline_cache);
    Session::with_options(Device::Vulkan, options).expect("a device; `apt-get install mesa-vulkan-drivers`")
}

#[test]
fn what_is_saved_is_there_in_the_next_session_and_many_may_save_at_once() {
    let dir = folder("tuning-saved");
    let session = kept_in(&dir);
    assert_eq!(open(Device::Vulkan, TuneBy::Measured).save_tuning(&Record::default()).unwrap(), None);
    std::thread::scope(|scope| {
        for i in 0..8 {
            let session = &session;
            scope.spawn(move || {
                let mut line = Record::default();
                line.set("matmul", &format!("class {i}"), "tiles");
                session.save_tuning(&line).unwrap().expect("a file");
            });
        }
    });
    let next = kept_in(&dir);
    let record = next.tuning().expect("a GPU");
    assert!((0..8).all(|i| record.get("matmul", &format!("class {i}")) == Some("tiles")));
    assert_eq!(next.tuning_notes(), [] as [String; 0]);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_that_are_damaged_or_of_another_device_are_passed_over_and_told() {
    let dir = folder("tuning-damaged");
    let session = kept_in(&dir);
    let caps = session.caps().expect("a GPU");
    let mut line = Record::default();
    line.set("matmul", "class", "tiles");
    let path = session.save_tuning(&line).unwrap().expect("a file");
    assert_eq!(path, tuning_file(caps, &dir));
    let whole = std::fs::read(&path).unwrap();
    let text = String::from_utf8(whole.clone()).unwrap();
    let others = [
        (text.replace(&caps.name, "Some other card").into_bytes(), "another device"),
        (text.replace("olivine-tuning 2", "olivine-tuning 1").into_bytes(), "does not begin with"),
        (vec![0xff; 4096], "does not begin with"),
        ([whole.as_slice(), b"\nno line at all\n\xff\xfe = \n"].concat(), "cannot be read"),
    ];
    for (bytes, said) in others {
        std::fs::write(&path, &bytes).unwrap();
        let notes = kept_in(&dir).tuning_notes().join("\n");
        assert!(notes.contains(said) && notes.contains(&*path.to_string_lossy()), "{notes}");
    }
    // The last one's good line counts all the same, and saving mends the file.
    assert_eq!(kept_in(&dir).tuning().expect("a GPU").get("matmul", "class"), Some("tiles"));
    session.save_tuning(&line).unwrap();
    assert_eq!(kept_in(&dir).tuning_notes(), [] as [String; 0]);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A session must come soon, whatever is in its folder.
#[cfg(unix)]
fn soon(dir: &Path) -> Session {
    let (send, receive) = std::sync::mpsc::channel();
    let dir = dir.to_path_buf();
    std::thread::spawn(move || send.send(kept_in(&dir)));
    receive.recv_timeout(std::time::Duration::from_secs(60)).expect("it must not hang")
}

#[cfg(unix)]
#[test]
fn pipes_links_and_folders_of_others_are_passed_over_and_told() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    warnings();
    let dir = folder("tuning-hostile");
    let session = kept_in(&dir);
    let mut line = Record::default();
    line.set("matmul", "class", "tiles");
    let path = session.save_tuning(&line).unwrap().expect("a file");
    let precious = dir.join("precious");
    std::fs::rename(&path, &precious).unwrap();
    let place = |what: &str| {
        let _ = std::fs::remove_file(&path);
        match what {
            "pipe" => assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
            "device" => symlink("/dev/zero", &path).unwrap(),
            _ => symlink(&precious, &path).unwrap(),
        }
    };
    for what in ["pipe", "device", "link"] {
        place(what);
        let session = soon(&dir);
        let notes = session.tuning_notes().join("\n");
        assert!(notes.contains("not a plain file"), "{what}: {notes}");
        assert_eq!(session.tuning().expect("a GPU").get("matmul", "class"), None, "{what}");
        // Saving puts a file in its place and leaves what it led to alone.
        session.save_tuning(&line).unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file(), "{what}");
        assert_eq!(soon(&dir).tuning().expect("a GPU").get("matmul", "class"), Some("tiles"));
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let session = soon(&dir);
    assert_eq!(session.tuning().expect("a GPU").get("matmul", "class"), None);
    assert_eq!(session.save_tuning(&line).unwrap(), None);
    let all = warnings();
    let about_folder = |w: &&String| w.contains("others may write") && w.contains(&*dir.to_string_lossy());
    assert_eq!(all.iter().filter(about_folder).count(), 1, "{all:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
