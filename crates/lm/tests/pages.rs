//! Caches in pages: they grow, are reused, shared and given away, and no result depends on it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod run;

use common::TempModel;
use olivine::prelude::*;
use olivine_lm::{CacheType, Engine, EngineOptions, Finish, LanguageModel, Request, RequestId, Share};
use run::{Got, engine, engine_on, finish, one, request};

/// Whether no sequence holds a page, and none is kept once they are forgotten.
fn all_free(engine: &mut Engine) -> bool {
    let (count, available) = engine.pages();
    engine.forget();
    count == available && engine.pages() == (count, count)
}

#[test]
fn caches_grow_without_new_plans_and_without_changing_what_is_decoded() {
    for cache in [CacheType::F32, CacheType::Q8_0] {
        grows(cache);
    }
}

fn grows(cache: CacheType) {
    let file = TempModel::new("llama", "growth");
    let options =
        EngineOptions::default().slots(2).chunk(64).cache(cache).logprobs(true).share(Share::Nothing);
    let mut grown = engine(&file, options);
    let small = grown.cache_bytes();
    let first = one(&mut grown, Request::new(vec![9; 65], 3));
    assert_eq!(grown.cache_bytes(), small);
    let plans = grown.compiled();
    // More pages than there are, twice, within prompts and while tokens are generated.
    let long = one(&mut grown, Request::new(vec![9; 65 + 128], 90));
    assert_eq!(long.tokens.len(), 90);
    let longer = one(&mut grown, Request::new(vec![9; 65 + 9 * 64], 40));
    assert_eq!(longer.tokens.len(), 40);
    assert!(grown.cache_bytes() >= 2 * small);
    assert_eq!(grown.compiled(), plans);
    assert_eq!(one(&mut grown, Request::new(vec![9; 65 + 128], 90)), long);
    assert_eq!(one(&mut grown, Request::new(vec![9; 65], 3)), first);
    assert!(all_free(&mut grown));
    // Caches that are allocated at once give the same.
    let mut fixed = engine(&file, options.cache_tokens(700));
    let bytes = fixed.cache_bytes();
    assert_eq!(one(&mut fixed, Request::new(vec![9; 65 + 9 * 64], 40)), longer);
    assert_eq!(fixed.cache_bytes(), bytes);
}

#[test]
fn on_vulkan_caches_grow_without_new_plans_and_shared_prefixes_give_the_same_bits() {
    for cache in [CacheType::F32, CacheType::Q8_0] {
        grows_and_shares_on_vulkan(cache);
    }
}

fn grows_and_shares_on_vulkan(cache: CacheType) {
    let file = TempModel::new("llama", "vulkan");
    let options = EngineOptions::default().slots(2).chunk(32).cache(cache).logprobs(true);
    let mut engine = engine_on("vulkan".parse().unwrap(), &file, options);
    let small = engine.cache_bytes();
    let prompt = |count: i64| Request::new((0..count).map(|i| i * 7 % 150).collect(), 2);
    let short = one(&mut engine, prompt(33));
    let plans = engine.compiled();
    let long = one(&mut engine, prompt(32 * 9 + 1));
    assert_eq!(engine.counts().shared, 32);
    assert!(engine.cache_bytes() > small);
    assert_eq!(engine.compiled(), plans);
    engine.forget();
    assert_eq!(one(&mut engine, prompt(32 * 9 + 1)), long);
    assert_eq!(engine.counts().shared, 32);
    assert_eq!(one(&mut engine, prompt(32 * 9 + 1)), long);
    assert_eq!(one(&mut engine, prompt(33)), short);
    assert_eq!(engine.counts().shared, 32 + 32 * 9 + 32);
    assert!(all_free(&mut engine) && engine.compiled() == plans);
}

#[test]
fn shared_prefixes_give_the_same_bits() {
    for (architecture, cache) in [
        ("llama", CacheType::F32),
        ("qwen3moe", CacheType::F32),
        ("gemma3", CacheType::F16),
        ("gpt-oss", CacheType::F32),
        ("llama", CacheType::Q8_0),
        ("gemma3", CacheType::Q8_0),
    ] {
        let file = TempModel::new(architecture, "shared");
        let options = EngineOptions::default().slots(2).chunk(32).cache(cache).logprobs(true);
        let mut alone = engine(&file, options.share(Share::Nothing));
        let mut shares = engine(&file, options);
        let system: Vec<i64> = (0..70).map(|i| (i * 13 + 5) % 150).collect();
        let with = |tail: &[i64]| Request::new([&system[..], tail].concat(), 7);
        let requests = || {
            [with(&[1, 2, 3]), with(&[4]), with(&[1, 2, 3, 4, 5, 6]), Request::new(system[..64].to_vec(), 4)]
        };
        let want: Vec<Got> = requests().map(|request| one(&mut alone, request)).into();
        assert_eq!(alone.counts().shared, 0);
        // One after the other, then all at once.
        for (request, want) in requests().into_iter().zip(&want) {
            assert_eq!(one(&mut shares, request), *want, "{architecture}");
        }
        // Of 64 tokens the last is computed in any case.
        assert_eq!(shares.counts().shared, 64 + 64 + 32);
        let ids = requests().map(|request| shares.add(request).unwrap());
        let got = finish(&mut shares, |_, _| {});
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(got[id], *want, "{architecture}");
        }
        assert!(all_free(&mut shares));
    }
}

#[test]
fn a_chat_goes_on_from_its_pages() {
    let file = TempModel::new("gemma3", "chat");
    let options = EngineOptions::default().logprobs(true);
    let mut chat = engine(&file, options.share(Share::Pages));
    let mut anew = engine(&file, options.share(Share::Nothing));
    let first = one(&mut chat, Request::new((1..60).collect(), 50));
    assert_eq!(one(&mut anew, Request::new((1..60).collect(), 50)), first);
    let said: Vec<i64> = (1..60).chain(first.tokens.iter().map(|(token, _)| *token)).collect();
    for prompt in [[said.clone(), vec![7, 8, 9]].concat(), said[..40].to_vec(), vec![50, 51], said] {
        let got = one(&mut chat, Request::new(prompt.clone(), 6));
        let want = one(&mut anew, Request::new(prompt, 6));
        for ((token, logprob), (expected, exact)) in got.tokens.iter().zip(&want.tokens) {
            assert_eq!(token, expected);
            let [found, exact] = [logprob, exact].map(|bits| f32::from_bits(bits.unwrap()));
            assert!((found - exact).abs() < 1e-4, "{found} is not {exact}");
        }
    }
    // 108 tokens were in the caches: three whole pages of them, then one, none and three.
    assert_eq!(chat.counts().shared, 96 + 32 + 96);
    assert!(all_free(&mut chat));
}

#[test]
fn sequences_give_their_pages_away_and_go_on_later_as_if_they_had_not() {
    for cache in [CacheType::F32, CacheType::Q8_0] {
        preempts(cache);
    }
}

fn preempts(cache: CacheType) {
    let file = TempModel::new("llama", "preempted");
    let options = EngineOptions::default().slots(3).chunk(32).cache(cache).logprobs(true);
    let requests = || [request(1, 40, 150), request(2, 70, 90), request(3, 5, 170), request(4, 33, 60)];
    let mut roomy = engine(&file, options);
    let want: Vec<Got> = requests().map(|request| one(&mut roomy, request)).into();
    assert_eq!(roomy.counts().preempted, 0);
    // Room for one whole sequence and little more.
    let mut tight = engine(&file, options.context(256).cache_tokens(288));
    let ids = requests().map(|request| tight.add(request).unwrap());
    let got = finish(&mut tight, |_, _| {});
    for (id, want) in ids.iter().zip(&want) {
        assert_eq!(got[id], *want);
    }
    assert!(tight.counts().preempted > 0);
    assert!(all_free(&mut tight));
    // A context that does not fit the pages is as short as they are.
    let mut short = engine(&file, options.cache_tokens(64));
    assert_eq!(short.context(), 64);
    let full = one(&mut short, request(1, 40, 150));
    assert_eq!((full.tokens.len(), full.finish), (24, Some(Finish::Context)));
    assert!(short.add(request(1, 64, 1)).is_err());
}

#[test]
fn a_thousand_requests_pass_through_four_slots_and_leave_no_page_taken() {
    let file = TempModel::new("qwen2", "thousand");
    let options = EngineOptions::default().slots(4).chunk(32).cache_tokens(512).context(128).logprobs(true);
    let mut engine = engine(&file, options);
    let make = |i: u64| request(i % 7, 1 + (i * 31 % 90) as usize, 1 + (i * 17 % 9) as usize);
    let mut ids: Vec<(RequestId, u64)> = Vec::new();
    let mut cancelled = Vec::new();
    let got = finish(&mut engine, |engine, step| {
        if step == 0 {
            ids.extend((0..1000u64).map(|i| (engine.add(make(i)).unwrap(), i)));
        }
        // One in the queue or in a slot leaves every few steps.
        if step % 40 == 7 {
            let (id, _) = ids[step * 3 % ids.len()];
            if engine.cancel(id) {
                cancelled.push(id);
            }
        }
        assert!(engine.pages().0 == 16);
    });
    assert!(cancelled.len() > 10);
    let plans = engine.compiled();
    assert!(all_free(&mut engine));
    for (id, i) in ids.iter().filter(|(id, _)| !cancelled.contains(id)) {
        let got = &got[id];
        assert_eq!((got.tokens.len() as u64, got.finish), (1 + i * 17 % 9, Some(Finish::Length)));
        // The same as alone, of a few.
        if i % 97 == 0 {
            assert_eq!(one(&mut engine, make(*i)), *got);
        }
    }
    assert_eq!(engine.compiled(), plans);
}

#[test]
fn drafts_are_verified_and_change_no_token() {
    let file = TempModel::new("llama", "drafts");
    let options = EngineOptions::default().slots(2).chunk(32).share(Share::Nothing);
    // Tokens that the model repeats, so that drafts are found and some are right.
    let looping = |seed: i64| Request::new((0..40).map(|i| (i % 5 + seed) * 3).collect(), 60);
    let mut plain = engine(&file, options);
    let mut drafts = engine(&file, options.draft(4));
    let want: Vec<Got> = (0..6).map(|seed| one(&mut plain, looping(seed))).collect();
    let sampled = one(&mut plain, request(9, 20, 30));
    for (seed, want) in want.iter().enumerate() {
        assert_eq!(one(&mut drafts, looping(seed as i64)), *want);
    }
    let counts = drafts.counts();
    assert!(counts.drafted > 50 && counts.accepted > 20 && counts.accepted < counts.drafted, "{counts:?}");
    assert_eq!(plain.counts().drafted, 0);
    // Beside one that draws, at the end of the context and with a token that ends.
    let ids = [looping(1), request(9, 20, 30)].map(|request| drafts.add(request).unwrap());
    let got = finish(&mut drafts, |_, _| {});
    assert_eq!((&got[&ids[0]], &got[&ids[1]]), (&want[1], &sampled));
    let mut short = engine(&file, options.context(70).draft(4));
    let cut = one(&mut short, looping(2));
    assert_eq!((&cut.tokens[..], cut.finish), (&want[2].tokens[..30], Some(Finish::Context)));
    let end = want[3].tokens[20].0;
    let until = want[3].tokens.iter().position(|(token, _)| *token == end).unwrap();
    let stopped = one(&mut drafts, looping(3).stop([end]));
    assert_eq!((&stopped.tokens[..], stopped.finish), (&want[3].tokens[..until], Some(Finish::Stop(end))));
    assert!(all_free(&mut drafts) && all_free(&mut short));
}

#[test]
fn a_long_sequence_with_windows_holds_a_few_pages() {
    let file = TempModel::new("phi3", "window");
    let model = LanguageModel::load(file.path()).unwrap();
    for ahead in [false, true] {
        for share in [Share::Nothing, Share::Chunks, Share::Pages] {
            let options = EngineOptions::default().chunk(64).logprobs(true).share(share).ahead(ahead);
            let mut engine = engine(&file, options);
            let small = engine.cache_bytes();
            let prompt: Vec<i64> = (0..330).map(|i| (i * 7 + 3) % 150).collect();
            let id = engine.add(Request::new(prompt.clone(), 300)).unwrap();
            let mut most = 0;
            let got = finish(&mut engine, |engine, _| {
                let (count, available) = engine.pages();
                most = most.max(count - available);
            });
            // A chunk, which a prefix may have too, and what it sees of the one before.
            assert!(most <= 7, "{most} pages are held");
            assert_eq!(engine.cache_bytes(), small, "{share:?}");
            // The scorer keeps all pages.
            let tokens: Vec<i64> =
                prompt.iter().copied().chain(got[&id].tokens.iter().map(|(t, _)| *t)).collect();
            let scores = model.scorer(engine.executable().session()).unwrap().logprobs(&tokens).unwrap();
            for ((_, found), want) in got[&id].tokens.iter().zip(&scores[prompt.len() - 1..]) {
                let found = f64::from(f32::from_bits(found.unwrap()));
                assert!((found - want).abs() < 1e-4, "{found} is not {want}");
            }
            assert!(all_free(&mut engine));
        }
    }
}

/// Takes all memory that a session may take, but for so many bytes.
fn fill(session: &Session, left: usize) -> Vec<DeviceTensor> {
    let upload = |bytes: usize| session.upload(&Tensor::zeros(DType::U8, [bytes]).unwrap());
    let room: Vec<DeviceTensor> = (0..left >> 16).map(|_| upload(1 << 16).unwrap()).collect();
    let mut taken = Vec::new();
    let mut bytes = 32usize << 20;
    while bytes >= 256 {
        match upload(bytes) {
            Ok(tensor) => taken.push(tensor),
            Err(_) => bytes /= 2,
        }
    }
    drop(room);
    taken
}

#[test]
fn sequences_that_memory_cannot_hold_end_and_others_go_on() {
    let file = TempModel::new("llama", "short");
    let limit = SessionOptions::default().memory_limit(96 << 20);
    let session = Session::with_options("vulkan".parse().unwrap(), limit).unwrap();
    let options = EngineOptions::default().slots(2).chunk(32).logprobs(true).share(Share::Nothing);
    let mut engine = LanguageModel::load(file.path()).unwrap().engine(&session, &options).unwrap();
    let short = one(&mut engine, Request::new(vec![5; 40], 9));
    let small = engine.pages().0;
    let taken = fill(&session, 2 << 20);
    // A prompt, and a sequence while it decodes, each beside one that fits.
    let context = engine.context();
    let long = engine.add(Request::new(vec![7; context - 1], 1)).unwrap();
    let fits = engine.add(Request::new(vec![5; 40], 9)).unwrap();
    let mut steps = 0;
    let bounded = |_: &mut Engine, _: usize| {
        steps += 1;
        assert!(steps < 4000, "a sequence never ends");
    };
    let got = finish(&mut engine, bounded);
    assert_eq!((got[&long].tokens.len(), got[&long].finish), (0, Some(Finish::Context)));
    assert_eq!(got[&fits], short);
    let room = engine.context();
    assert!(room < context && engine.pages().0 * 32 == room, "{room} of {context}");
    assert!(engine.pages().0 > small, "pools grew by less than twice");
    let decodes = one(&mut engine, Request::new(vec![3; 20], context));
    assert_eq!((decodes.tokens.len() + 20, decodes.finish), (room, Some(Finish::Context)));
    assert!(engine.add(Request::new(vec![7; room], 1)).is_err());
    drop(taken);
    assert_eq!(one(&mut engine, Request::new(vec![5; 40], 9)), short);
    assert!(all_free(&mut engine));
}
