//! Random tensors for measurements, made quickly: all are cut from one stretch of numbers whose odd length keeps rows
//! from repeating.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use olivine::Session;
use olivine::internals::models::seeded_input;
use olivine::ir::{DType, Data, Graph, Shape, Tensor, TensorType};

use crate::answer::Failure;
use crate::model::SEED;

/// Elements of the stretch: a prime.
const PERIOD: usize = 1_048_583;
/// Elements between the beginnings of two tensors: another prime.
const STEP: usize = 131_071;

/// Stretches of random numbers in the types and ranges asked for so far.
#[derive(Default)]
pub(crate) struct Noise {
    stretches: HashMap<(DType, u32, u32), Vec<u8>>,
    /// Tensors cut so far; each begins elsewhere.
    cut: usize,
}

impl Noise {
    /// A tensor for every input of a graph: floats uniform in [-1, 1), i8 in [-127, 127], zeros where a number may be an
    /// index.
    pub(crate) fn inputs(&mut self, graph: &Graph) -> Result<Vec<(String, Tensor)>, Failure> {
        graph.inputs().map(|(name, id)| Ok((name.into(), self.tensor(graph.ty(id)?, 1.0, 0.0)?))).collect()
    }

    /// A tensor for every param of a graph: float matrices uniform within 1/√rows, vectors within 0.02, norm weights
    /// (`*.gamma`) around one.
    pub(crate) fn params(&mut self, graph: &Graph) -> Result<Vec<(String, Tensor)>, Failure> {
        let param = |(name, id): (&str, _)| {
            let ty = graph.ty(id)?;
            let scale = if ty.shape.rank() >= 2 { (ty.shape[0].max(1) as f32).sqrt().recip() } else { 0.02 };
            let centre = if name.ends_with(".gamma") { 1.0 } else { 0.0 };
            Ok((name.into(), self.tensor(ty, scale, centre)?))
        };
        graph.params().map(param).collect()
    }

    /// Floats uniform within `scale` of `centre`.
    fn tensor(&mut self, ty: TensorType, scale: f32, centre: f32) -> Result<Tensor, Failure> {
        if ty.packed.is_some() {
            return blocks(ty);
        }
        if !ty.dtype.is_float() && ty.dtype != DType::I8 {
            return Ok(Tensor::zeros(ty.dtype, ty.shape)?);
        }
        let stretch = match self.stretches.entry((ty.dtype, scale.to_bits(), centre.to_bits())) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => place.insert(stretch(ty.dtype, scale, centre)?),
        };
        self.cut += 1;
        let mut from = (self.cut * STEP % PERIOD) * ty.dtype.size();
        let mut bytes = Vec::with_capacity(ty.bytes());
        while bytes.len() < ty.bytes() {
            let rest = stretch.get(from..).unwrap_or_default();
            bytes.extend_from_slice(rest.get(..ty.bytes() - bytes.len()).unwrap_or(rest));
            from = 0;
        }
        Ok(Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes)?)?)
    }
}

/// A packed tensor whose bytes decode to finite numbers in every format: as an f16, two of them are 0.065.
pub(crate) fn blocks(ty: TensorType) -> Result<Tensor, Failure> {
    let mut tensor = Tensor::zeros(ty.dtype, ty.shape)?;
    tensor.as_mut_slice::<u8>()?.fill(0x2c);
    let format = ty.packed.ok_or_else(|| Failure::new(format!("{ty} is not packed")))?;
    Ok(tensor.into_packed(format)?)
}

/// The numbers that all tensors of a type and range are cut from.
fn stretch(dtype: DType, scale: f32, centre: f32) -> Result<Vec<u8>, Failure> {
    let scale = if dtype == DType::I8 { 127.0 } else { scale };
    let mut uniform = seeded_input("noise", Shape::new(&[PERIOD])?, SEED)?;
    for x in uniform.as_mut_slice::<f32>()? {
        *x = centre + scale * *x;
    }
    if dtype == DType::F32 {
        return Ok(uniform.data().as_bytes().to_vec());
    }
    let mut g = Graph::new("cast");
    let x = g.input("x", DType::F32, [PERIOD])?;
    let y = g.cast(x, dtype)?;
    g.output("y", y)?;
    let out = Session::new(olivine::Device::Cpu)?.compile(&g)?.run([("x", &uniform)])?;
    Ok(out.get("y")?.data().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_filled_in_their_own_types_and_differ() -> Result<(), Failure> {
        let mut g = Graph::new("types");
        for (name, dtype) in [("h", DType::F16), ("i", DType::I64), ("b", DType::I8), ("y", DType::F32)] {
            g.input(name, dtype, [300])?;
        }
        let x = g.input("x", DType::F32, [300])?;
        g.output("x2", x)?;
        let mut noise = Noise::default();
        let tensors = noise.inputs(&g)?;
        let of = |i: usize| tensors[i].1.to_f64();
        let types: Vec<DType> = tensors.iter().map(|(_, t)| t.dtype()).collect();
        assert_eq!(types, [DType::F16, DType::I64, DType::I8, DType::F32, DType::F32]);
        assert!(of(0).iter().all(|x| x.abs() <= 1.0) && of(0).iter().any(|x| x.abs() > 0.5));
        assert!(of(1).iter().all(|x| *x == 0.0));
        assert!(of(2).iter().any(|x| x.abs() > 64.0));
        assert_ne!(of(3), of(4));
        assert_ne!(noise.inputs(&g)?[4].1.to_f64(), of(4), "fresh numbers every time");
        Ok(())
    }

    #[test]
    fn a_tensor_longer_than_the_stretch_goes_round_it() -> Result<(), Failure> {
        let ty = TensorType::new(DType::F32, Shape::new(&[PERIOD + 5])?);
        let tensor = Noise::default().tensor(ty, 1.0, 0.0)?;
        let all = tensor.as_slice::<f32>()?;
        assert_eq!(all[..5], all[PERIOD..]);
        Ok(())
    }
}
