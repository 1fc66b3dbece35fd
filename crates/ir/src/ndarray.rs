//! Tensors from and to `ndarray`.

use ndarray::{ArrayBase, ArrayViewD, Data, Dimension, IxDyn};

use crate::{Element, Error, Tensor};

/// The elements are copied, in row-major order.
impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Self, Error> {
        Tensor::new(array.shape(), array.iter().copied().collect())
    }
}

/// The elements are moved where the array has them in row-major order, and copied otherwise.
impl<T: Element, D: Dimension> TryFrom<ndarray::Array<T, D>> for Tensor {
    type Error = Error;

    fn try_from(array: ndarray::Array<T, D>) -> Result<Self, Error> {
        if !array.is_standard_layout() {
            return Tensor::try_from(&array);
        }
        let shape = array.shape().to_vec();
        let count: usize = shape.iter().product();
        let (elements, offset) = array.into_raw_vec_and_offset();
        // An array can be a part of a longer vector.
        match offset.unwrap_or(0) {
            0 if elements.len() == count => Tensor::new(shape.as_slice(), elements),
            first => Tensor::new(shape.as_slice(), elements[first..first + count].to_vec()),
        }
    }
}

impl Tensor {
    /// The elements as an array of any rank, not copied.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>, Error> {
        let elements = self.as_slice::<T>()?;
        ArrayViewD::from_shape(IxDyn(self.shape()), elements)
            .map_err(|e| Error::Invalid { location: self.ty().to_string(), problem: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3, ArrayD, Axis, Slice, arr0};

    use super::*;

    #[test]
    fn arrays_become_tensors_and_tensors_arrays() {
        let array = Array3::from_shape_fn([2, 3, 4], |(i, j, k)| (i * 100 + j * 10 + k) as i32);
        let tensor = Tensor::try_from(array.clone()).unwrap();
        assert_eq!(tensor.shape().dims(), [2, 3, 4]);
        assert_eq!(tensor.to_ndarray::<i32>().unwrap(), array.view().into_dyn());
        // Other orders, parts and steps are copied as they are indexed.
        let turned = array.clone().reversed_axes();
        assert_eq!(Tensor::try_from(&turned).unwrap().to_ndarray::<i32>().unwrap(), turned.view().into_dyn());
        assert_eq!(
            Tensor::try_from(turned.clone()).unwrap().to_ndarray::<i32>().unwrap(),
            turned.view().into_dyn()
        );
        let part = array.slice_axis(Axis(1), Slice::new(0, None, 2));
        assert_eq!(Tensor::try_from(&part).unwrap().to_ndarray::<i32>().unwrap(), part.into_dyn());
        let mut owned_part = array.clone();
        owned_part.slice_axis_inplace(Axis(0), Slice::from(1..));
        let expected = array.slice_axis(Axis(0), Slice::from(1..));
        assert_eq!(Tensor::try_from(owned_part).unwrap().to_ndarray::<i32>().unwrap(), expected.into_dyn());
        assert_eq!(Tensor::try_from(arr0(7.0f64)).unwrap(), Tensor::scalar(7.0f64));
        let none = Array2::<f32>::zeros([0, 5]);
        assert_eq!(Tensor::try_from(none).unwrap().shape().dims(), [0, 5]);
    }

    #[test]
    fn other_dtypes_and_too_many_axes_are_errors() {
        assert!(Tensor::from([1.0f32]).to_ndarray::<i32>().is_err());
        let deep = ArrayD::<f32>::zeros(IxDyn(&[1; 9]));
        assert!(Tensor::try_from(&deep).is_err());
    }
}
