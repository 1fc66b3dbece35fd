//! The text of a module, read line by line as the printer writes it.

use std::collections::HashMap;

use crate::decode::{self, Op};

/// What stands in the place of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Reg(usize),
    Number(u64),
    /// Registers in braces.
    Several(Vec<usize>),
    /// A register in brackets, or none for workgroup memory, and an offset.
    Memory(Option<usize>, u64),
    /// A parameter in brackets.
    Param(usize),
    /// Position of an instruction.
    Label(usize),
    Special(Special),
    /// Where a result goes that nobody wants.
    Nowhere,
}

/// Registers that are there from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread,
    Group(usize),
    Groups(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// A predicate, and the value that it must have.
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) op: Op,
    pub(crate) operands: Vec<Operand>,
    /// Where it stands in the text.
    pub(crate) line: usize,
}

/// A module of one entry point.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub(crate) threads: usize,
    /// Whether each parameter is an address.
    pub(crate) params: Vec<bool>,
    pub(crate) registers: usize,
    /// Bytes of workgroup memory.
    pub(crate) shared: usize,
    pub(crate) code: Vec<Instruction>,
    /// The lines, for messages.
    pub(crate) text: Vec<String>,
}

/// What names stand for.
#[derive(Default)]
struct Names {
    /// The first register of a class and their number, by prefix.
    classes: HashMap<String, (usize, usize)>,
    arrays: HashMap<String, u64>,
    labels: HashMap<String, usize>,
    params: HashMap<String, usize>,
}

impl Module {
    /// Reads a module; an error names the line.
    pub fn parse(text: &str) -> Result<Module, String> {
        let mut module = Module { text: text.lines().map(str::to_string).collect(), ..Module::default() };
        let mut names = Names::default();
        let mut code: Vec<(usize, String)> = Vec::new();
        let mut inside = false;
        for (number, line) in text.lines().enumerate() {
            let at = |problem: &str| format!("line {}: {problem}: {line}", number + 1);
            let line = line.split("//").next().unwrap_or("").trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] | [")"] | [".pragma", ..] => {}
                [".version" | ".target" | ".address_size", _] if !inside => {}
                [".visible", ".entry", ..] if !inside => {}
                [".param", ty, name] if !inside => {
                    names.params.insert(name.trim_end_matches(',').to_string(), module.params.len());
                    module.params.push(*ty == ".u64");
                }
                [".reqntid", n, "1,", "1"] => {
                    module.threads = n.trim_end_matches(',').parse().map_err(|_| at("a size"))?;
                }
                [".minnctapersm", "1"] if !inside => {}
                ["{"] => inside = true,
                ["}"] => inside = false,
                [".reg", _, name] if inside => {
                    let (prefix, count) = name.split_once('<').ok_or_else(|| at("registers"))?;
                    let count = count.trim_end_matches([';', '>']).parse().map_err(|_| at("a count"))?;
                    names.classes.insert(prefix.to_string(), (module.registers, count));
                    module.registers += count;
                }
                [".shared", ".align", "16", ".b8", name] if inside => {
                    let (name, bytes) = name.split_once('[').ok_or_else(|| at("an array"))?;
                    let bytes: usize =
                        bytes.trim_end_matches([']', ';']).parse().map_err(|_| at("a size"))?;
                    names.arrays.insert(name.to_string(), module.shared as u64);
                    module.shared += bytes.next_multiple_of(16);
                }
                [label] if inside && label.ends_with(':') => {
                    names.labels.insert(label.trim_end_matches(':').to_string(), code.len());
                }
                _ if inside && line.ends_with(';') => {
                    code.push((number, line.trim_end_matches(';').to_string()));
                }
                _ => return Err(at("not understood")),
            }
        }
        if module.threads == 0 {
            return Err("no size of a workgroup".into());
        }
        for (number, line) in code {
            let parsed = instruction(&line, number, &names);
            module.code.push(parsed.map_err(|e| format!("line {}: {e}: {line}", number + 1))?);
        }
        Ok(module)
    }
}

fn instruction(line: &str, number: usize, names: &Names) -> Result<Instruction, String> {
    let (guard, rest) = match line.strip_prefix('@') {
        None => (None, line),
        Some(rest) => {
            let (name, rest) = rest.split_once(' ').ok_or("a guard alone")?;
            let (value, name) = match name.strip_prefix('!') {
                Some(name) => (false, name),
                None => (true, name),
            };
            (Some((register(name, names)?, value)), rest)
        }
    };
    let (name, operands) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let op = decode::op(name).ok_or_else(|| format!("an instruction `{name}` that is not known"))?;
    if guard.is_some() && op != Op::Branch {
        return Err("a guard of something other than a branch".into());
    }
    let operands = split(operands).into_iter().map(|o| operand(&o, names)).collect::<Result<_, _>>()?;
    Ok(Instruction { guard, op, operands, line: number })
}

/// Operands between commas outside of braces.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts.iter().map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect()
}

fn operand(text: &str, names: &Names) -> Result<Operand, String> {
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        let regs = inner.split(',').map(|r| register(r.trim(), names)).collect::<Result<_, _>>()?;
        return Ok(Operand::Several(regs));
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        if let Some(param) = names.params.get(inner) {
            return Ok(Operand::Param(*param));
        }
        let (base, offset) = match inner.split_once('+') {
            Some((base, offset)) => (base, unsigned(offset)?),
            None => (inner, 0),
        };
        return Ok(match names.arrays.get(base) {
            Some(array) => Operand::Memory(None, array + offset),
            None => Operand::Memory(Some(register(base, names)?), offset),
        });
    }
    let axis = |name: &str| ["x", "y", "z"].iter().position(|a| *a == name).ok_or("an axis");
    if text == "%tid.x" {
        return Ok(Operand::Special(Special::Thread));
    }
    if let Some(name) = text.strip_prefix("%ctaid.") {
        return Ok(Operand::Special(Special::Group(axis(name)?)));
    }
    if let Some(name) = text.strip_prefix("%nctaid.") {
        return Ok(Operand::Special(Special::Groups(axis(name)?)));
    }
    if text.starts_with('%') {
        return Ok(Operand::Reg(register(text, names)?));
    }
    if text == "_" {
        return Ok(Operand::Nowhere);
    }
    if let Some(array) = names.arrays.get(text) {
        return Ok(Operand::Number(*array));
    }
    if let Some(label) = names.labels.get(text) {
        return Ok(Operand::Label(*label));
    }
    Ok(Operand::Number(unsigned(text)?))
}

fn unsigned(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is no number and no name"))
}

fn register(text: &str, names: &Names) -> Result<usize, String> {
    let digits = text.find(|c: char| c.is_ascii_digit()).ok_or_else(|| format!("no register `{text}`"))?;
    let (prefix, number) = text.split_at(digits);
    let (first, count) = names.classes.get(prefix).ok_or_else(|| format!("no registers `{prefix}`"))?;
    let number: usize = number.parse().map_err(|_| format!("no register `{text}`"))?;
    if number < *count { Ok(first + number) } else { Err(format!("register `{text}` is not declared")) }
}
