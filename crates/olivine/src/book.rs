//! The pages of the book that have examples, compiled and run as doc tests.

/// Names a page; the compiler reads it as a comment.
macro_rules! pages {
    ($($name:ident = $path:literal,)*) => {$(
        #[doc = include_str!($path)]
        struct $name;
    )*};
}

pages! {
    Readme = "../../../README.md",
    FirstGraph = "../../../docs/start/first-graph.md",
    FirstModel = "../../../docs/start/first-model.md",
    FirstGpu = "../../../docs/start/first-gpu.md",
    Models = "../../../docs/guides/models.md",
    Quantised = "../../../docs/guides/quantised.md",
    ChoosingADevice = "../../../docs/guides/choosing-a-device.md",
    Running = "../../../docs/guides/running.md",
    Sizes = "../../../docs/guides/sizes.md",
    State = "../../../docs/guides/state.md",
    Profiling = "../../../docs/guides/profiling.md",
    CustomOps = "../../../docs/custom-ops.md",
    Onnx = "../../../docs/onnx.md",
}
