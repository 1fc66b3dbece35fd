//! NumPy's validation sets: correctly rounded results of elementary functions, each with the error that NumPy allows itself.

use std::path::Path;

use olivine::Session;
use olivine_ir::op::{ScalarOp, Unary};
use olivine_ir::{DType, Data, Graph, Tensor};
use serde_json::json;

use crate::answer::{Answer, Failure};
use crate::table::Table;

/// The sets that we have a function for.
const FUNCTIONS: [(&str, Unary); 17] = [
    ("arccos", Unary::Acos),
    ("arccosh", Unary::Acosh),
    ("arcsin", Unary::Asin),
    ("arcsinh", Unary::Asinh),
    ("arctan", Unary::Atan),
    ("arctanh", Unary::Atanh),
    ("cos", Unary::Cos),
    ("cosh", Unary::Cosh),
    ("exp", Unary::Exp),
    ("expm1", Unary::Expm1),
    ("log", Unary::Log),
    ("log1p", Unary::Log1p),
    ("log2", Unary::Log2),
    ("sin", Unary::Sin),
    ("sinh", Unary::Sinh),
    ("tan", Unary::Tan),
    ("tanh", Unary::Tanh),
];

/// Units in the last place that an f64 may be off; the sets allow 1, which is for libraries with tables. That of an f32
/// is what the set says, 2 to 4.
const ALLOWED_F64: u64 = 4;

/// Bits of arguments and results of one dtype, and units in the last place that a result may be off.
#[derive(Default)]
struct Rows {
    x: Vec<u64>,
    y: Vec<u64>,
    allowed: u64,
}

/// Runs the sets of a folder on a session's device; both floats, where the device has f64.
pub(super) fn run(session: &Session, folder: &Path) -> Result<Answer, Failure> {
    let mut table = Table::new(&["function", "dtype", ">rows", ">exact", ">ulp allowed", ">worst", "at"]);
    let (mut wrong, mut list, mut rows) = (Vec::new(), Vec::new(), 0);
    for (name, op) in FUNCTIONS {
        let path = folder.join(format!("umath-validation-set-{name}.csv"));
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Failure::new(format!("cannot read `{}`: {e}", path.display())))?;
        for dtype in [DType::F32, DType::F64] {
            let set = parse(&text, dtype).map_err(|e| Failure::new(format!("`{}`: {e}", path.display())))?;
            let got = match apply(session, op, dtype, &set.x) {
                Ok(got) => got,
                Err(e) if e.to_string().contains("the device has no f64") => continue,
                Err(e) => return Err(Failure::from(e).context(name)),
            };
            let far: Vec<u64> = set.y.iter().zip(&got).map(|(y, g)| distance(dtype, *y, *g)).collect();
            let worst = far.iter().copied().max().unwrap_or(0);
            let at = far.iter().position(|d| *d == worst).map_or(0, |i| set.x[i]);
            let exact = far.iter().filter(|d| **d == 0).count();
            rows += far.len();
            let allowed = if dtype == DType::F32 { set.allowed } else { ALLOWED_F64 };
            if worst > allowed || far.is_empty() {
                wrong.push(format!("{name} of {dtype}, {worst} ulp at {at:#x}"));
            }
            list.push(json!({ "function": name, "dtype": dtype.name(), "rows": far.len(), "worst": worst }));
            let [all, exact] = [far.len(), exact].map(|n| n.to_string());
            let worst = if worst == u64::MAX { "not a number".into() } else { worst.to_string() };
            let allowed = allowed.to_string();
            table.row([name.into(), dtype.name().into(), all, exact, allowed, worst, format!("{at:#x}")]);
        }
    }
    let text = format!("{}\n\n{table}\n{rows} rows\n", session.device_name());
    let failure = (!wrong.is_empty()).then(|| Failure::new(format!("too far off: {}", wrong.join("; "))));
    Ok(Answer::new(text, json!({ "rows": rows, "functions": list, "wrong": wrong })).with_failure(failure))
}

/// The rows of a dtype: `np.float32,0x3f800000,0x402df854,3`, with titles and remarks between them.
fn parse(text: &str, dtype: DType) -> Result<Rows, String> {
    let word = if dtype == DType::F32 { "np.float32" } else { "np.float64" };
    let mut rows = Rows::default();
    for line in text.lines().filter(|l| l.starts_with(word)) {
        let bits = |field: Option<&str>| {
            let digits = field.and_then(|f| f.trim().strip_prefix("0x"));
            digits.and_then(|d| u64::from_str_radix(d, 16).ok()).ok_or_else(|| format!("not a row: {line}"))
        };
        let mut fields = line.split(',').skip(1);
        rows.x.push(bits(fields.next())?);
        rows.y.push(bits(fields.next())?);
        let allowed = fields.next().and_then(|f| f.trim().parse().ok());
        rows.allowed = rows.allowed.max(allowed.ok_or_else(|| format!("not a row: {line}"))?);
    }
    Ok(rows)
}

fn apply(session: &Session, op: Unary, dtype: DType, x: &[u64]) -> Result<Vec<u64>, olivine::Error> {
    let mut g = Graph::new("umath");
    let input = g.input("x", dtype, [x.len()])?;
    let y = g.add1(ScalarOp::Unary(op), &[input])?;
    g.output("y", y)?;
    let x = match dtype {
        DType::F32 => Data::F32(x.iter().map(|b| f32::from_bits(*b as u32)).collect()),
        _ => Data::F64(x.iter().map(|b| f64::from_bits(*b)).collect()),
    };
    let x = Tensor::from_data([x.len()], x)?;
    let out = session.compile(&g)?.run([("x", &x)])?;
    Ok(match out.get("y")?.data() {
        Data::F32(y) => y.iter().map(|y| u64::from(y.to_bits())).collect(),
        Data::F64(y) => y.iter().map(|y| y.to_bits()).collect(),
        _ => Vec::new(),
    })
}

/// How many numbers of the dtype are between two, and one more; NaN is apart from all others.
fn distance(dtype: DType, a: u64, b: u64) -> u64 {
    let nan = |bits: u64| match dtype {
        DType::F32 => f32::from_bits(bits as u32).is_nan(),
        _ => f64::from_bits(bits).is_nan(),
    };
    // An integer that orders like the number, both zeros alike.
    let key = |bits: u64| match dtype {
        DType::F32 if bits >> 31 == 1 => -((bits & 0x7fff_ffff) as i64),
        DType::F64 if bits >> 63 == 1 => -((bits & (u64::MAX >> 1)) as i64),
        _ => bits as i64,
    };
    match (nan(a), nan(b)) {
        (true, true) => 0,
        (false, false) => key(a).abs_diff(key(b)),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_distances_count_numbers() {
        let text = "dtype,input,output,ulperrortol\n## remark ##\nnp.float32,0x3f800000,0x402df854,3\nnp.float64,0x3ff0000000000000,0x4005bf0a8b145769,1\n";
        let single = parse(text, DType::F32).unwrap_or_default();
        assert_eq!((single.x, single.y, single.allowed), (vec![0x3f80_0000], vec![0x402d_f854], 3));
        assert_eq!(parse(text, DType::F64).unwrap_or_default().x, [0x3ff0_0000_0000_0000]);
        assert!(parse("np.float32,x,0x1,2", DType::F32).is_err());
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(distance(DType::F32, bits(1.0), bits(1.0 + 3.0 * f32::EPSILON)), 3);
        assert_eq!(distance(DType::F32, bits(-0.0), bits(f32::from_bits(1))), 1);
        assert_eq!(distance(DType::F32, bits(-0.0), bits(0.0)), 0);
        assert_eq!(distance(DType::F32, bits(f32::NAN), bits(1.0)), u64::MAX);
        assert_eq!(distance(DType::F32, bits(f32::MAX), bits(f32::INFINITY)), 1);
        assert_eq!(distance(DType::F64, (-1.5f64).to_bits(), (-1.5f64).next_down().to_bits()), 1);
    }
}
