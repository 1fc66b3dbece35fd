//! What is tuned when no model is given: matmuls and attentions as models have them.

use olivine::ir::op::{Attention, HeadLayout};
use olivine::ir::{DType, Graph};

use crate::answer::Failure;
use crate::measure::graph;

/// A graph whose kernels are to be tuned.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) graph: Graph,
}

/// Rows, columns and summed axis.
type MatmulSize = (usize, usize, usize);

/// A float type by name.
pub(super) fn dtype(name: &str) -> Result<DType, Failure> {
    let known = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("f64", DType::F64)];
    let found = known.into_iter().find(|(n, _)| *n == name.trim());
    found.map(|(_, dtype)| dtype).ok_or_else(|| {
        Failure::new(format!("`{name}` is not a type to tune for")).hint("give f32, f16, bf16 or f64")
    })
}

/// Matmuls of sizes written as `MxNxK`.
pub(super) fn matmuls(texts: &[String], dtypes: &[DType]) -> Result<Vec<Subject>, Failure> {
    let mut all = Vec::new();
    for text in texts {
        let sizes: Vec<Option<usize>> =
            text.trim().split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
        let [Some(m), Some(n), Some(k)] = sizes[..] else {
            return Err(
                Failure::new(format!("`{text}` is no matmul")).hint("write MxNxK, as in 128x768x3072")
            );
        };
        for dtype in dtypes {
            all.push(matmul((m, n, k), *dtype)?);
        }
    }
    Ok(all)
}

/// Squares, the matmuls of BERT and of an 8B Llama at several numbers of rows, and attentions of both.
pub(super) fn standard(dtypes: &[DType], quick: bool) -> Result<Vec<Subject>, Failure> {
    // Of attentions: batch, heads, queries, keys, head elements.
    let (mut sizes, mut attentions): (Vec<MatmulSize>, _) =
        (vec![(64, 64, 64), (1, 96, 64)], vec![[1, 2, 32, 32, 16]]);
    if !quick {
        sizes.clear();
        for m in [128, 512, 4096] {
            sizes.extend([(m, 768, 768), (m, 2304, 768), (m, 3072, 768), (m, 768, 3072)]);
        }
        for m in [1, 2, 4, 8, 16, 32, 64, 512, 2048] {
            sizes.extend([(m, 4096, 4096), (m, 1024, 4096), (m, 14336, 4096), (m, 4096, 14336)]);
        }
        sizes.extend([256, 512, 1024, 2048, 4096, 8192].map(|n| (n, n, n)));
        attentions = vec![
            [1, 12, 128, 128, 64],
            [1, 12, 512, 512, 64],
            [32, 12, 128, 128, 64],
            [4, 16, 2048, 2048, 64],
            [1, 32, 2048, 2048, 128],
            [1, 32, 4096, 4096, 128],
            [1, 32, 1, 1024, 128],
            [1, 32, 1, 4096, 128],
        ];
    }
    let mut all = Vec::new();
    for dtype in dtypes {
        for size in &attentions {
            all.push(attention(*size, *dtype)?);
        }
        for size in &sizes {
            all.push(matmul(*size, *dtype)?);
        }
    }
    Ok(all)
}

/// Rows that come with the run, times a weight.
fn matmul((m, n, k): MatmulSize, dtype: DType) -> Result<Subject, Failure> {
    let name = format!("{dtype} matmul {m}x{n}x{k}");
    let graph = graph(&name, |g| {
        let (x, w) = (g.input("x", dtype, [m, k])?, g.param("w", dtype, [k, n])?);
        g.matmul(x, w)
    })?;
    Ok(Subject { name, graph })
}

fn attention([batch, heads, queries, keys, dim]: [usize; 5], dtype: DType) -> Result<Subject, Failure> {
    let name = format!("{dtype} attention b{batch} h{heads} s{queries}x{keys} d{dim}");
    let graph = graph(&name, |g| {
        let q = g.input("q", dtype, [batch, heads, queries, dim])?;
        let k = g.input("k", dtype, [batch, heads, keys, dim])?;
        let v = g.input("v", dtype, [batch, heads, keys, dim])?;
        g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[])
    })?;
    Ok(Subject { name, graph })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matmuls_are_read_as_m_n_and_k() -> Result<(), Failure> {
        let all = matmuls(&["2x3x5".into(), " 7x1x1".into()], &[DType::F32, DType::F16])?;
        let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        let expected = ["f32 matmul 2x3x5", "f16 matmul 2x3x5", "f32 matmul 7x1x1", "f16 matmul 7x1x1"];
        assert_eq!(names, expected);
        for bad in ["", "1x2", "1x2x3x4", "0x1x1", "axbxc", "-1x1x1"] {
            assert!(matmuls(&[bad.into()], &[DType::F32]).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn the_standard_list_has_a_valid_graph_for_every_name() -> Result<(), Failure> {
        let all = standard(&[DType::F32, DType::F16], false)?;
        let names: std::collections::HashSet<&str> = all.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("f16 matmul 128x3072x768"));
        assert!(dtype("i8").is_err());
        Ok(())
    }
}
