//! `olivine-bindgen MODULE.wasm FOLDER` writes a module and its JavaScript for the web into a folder.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = args.as_slice() else {
        eprintln!("usage: olivine-bindgen MODULE.wasm FOLDER");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    let written = bindgen.input_path(module).web(true).and_then(|bindgen| {
        bindgen.typescript(false).remove_name_section(true).remove_producers_section(true).generate(folder)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:?}");
            ExitCode::FAILURE
        }
    }
}
