//! Tensors from and to slices, vectors and arrays.

use crate::{Element, Error, Shape, Tensor};

/// A slice, copied, as a tensor of one axis.
///
/// ```
/// use olivine_ir::Tensor;
/// let samples = [0.5f32, 1.5, 2.5];
/// let x = Tensor::from(&samples[1..]);
/// assert_eq!(x.to_string(), "[1.5 2.5]");
/// ```
impl<T: Element> From<&[T]> for Tensor {
    fn from(elements: &[T]) -> Self {
        elements.to_vec().into()
    }
}

/// A vector as a tensor of one axis; nothing is copied.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(elements: Vec<T>) -> Self {
        let shape = Shape::vector(elements.len());
        Tensor::own(shape, T::wrap(elements))
    }
}

impl<T: Element, const N: usize> From<[T; N]> for Tensor {
    fn from(elements: [T; N]) -> Self {
        Vec::from(elements).into()
    }
}

/// ```
/// use olivine_ir::Tensor;
/// let x = Tensor::from([[1i64, 2, 3], [4, 5, 6]]);
/// assert_eq!(x.shape().dims(), [2, 3]);
/// ```
impl<T: Element, const N: usize, const M: usize> From<[[T; N]; M]> for Tensor {
    fn from(rows: [[T; N]; M]) -> Self {
        Tensor::own(Shape::matrix(M, N), T::wrap(rows.as_flattened().to_vec()))
    }
}

impl<T: Element, const N: usize, const M: usize, const L: usize> From<[[[T; N]; M]; L]> for Tensor {
    fn from(matrices: [[[T; N]; M]; L]) -> Self {
        let elements = matrices.as_flattened().as_flattened().to_vec();
        Tensor::own(Shape::matrices(L, M, N), T::wrap(elements))
    }
}

/// The elements in row-major order; an error where there are not as many.
///
/// ```
/// use olivine_ir::Tensor;
/// let sizes = Tensor::from([640i64, 480]);
/// let [width, height] = <[i64; 2]>::try_from(&sizes)?;
/// assert_eq!(width * height, 307_200);
/// # Ok::<(), olivine_ir::Error>(())
/// ```
impl<T: Element, const N: usize> TryFrom<&Tensor> for [T; N] {
    type Error = Error;

    fn try_from(tensor: &Tensor) -> Result<Self, Error> {
        let problem = || format!("{} has {} elements, not {N}", tensor.ty(), tensor.shape().numel());
        tensor.as_slice::<T>()?.try_into().map_err(|_| Error::BadData { problem: problem() })
    }
}

impl Tensor {
    /// A copy of the elements in row-major order; [`Tensor::as_slice`] borrows them.
    ///
    /// ```
    /// use olivine_ir::Tensor;
    /// let x = Tensor::from([[[1.0f32, 2.0], [3.0, 4.0]]]);
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), olivine_ir::Error>(())
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.as_slice::<T>().map(<[T]>::to_vec)
    }

    /// The element of a tensor that has one, whatever its rank; an error where there are none or more.
    ///
    /// ```
    /// use olivine_ir::Tensor;
    /// assert_eq!(Tensor::from([[42i64]]).item::<i64>()?, 42);
    /// assert!(Tensor::from([1i64, 2]).item::<i64>().is_err());
    /// # Ok::<(), olivine_ir::Error>(())
    /// ```
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        match self.as_slice::<T>()? {
            [element] => Ok(*element),
            elements => {
                let problem = format!("{} has {} elements, not one", self.ty(), elements.len());
                Err(Error::BadData { problem })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn arrays_and_slices_become_tensors_and_back() {
        let cube = Tensor::from([[[1i32, 2], [3, 4], [5, 6]]]);
        assert_eq!(cube.shape().dims(), [1, 3, 2]);
        assert_eq!(<[i32; 6]>::try_from(&cube).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(Tensor::from(&[1u8, 2][..]), Tensor::from([1u8, 2]));
        assert_eq!(cube.to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let empty: [[[f32; 2]; 0]; 3] = [[], [], []];
        assert_eq!(Tensor::from(empty).shape().dims(), [3, 0, 2]);
    }

    #[test]
    fn other_counts_and_types_are_errors_that_say_what_the_tensor_is() {
        let x = Tensor::from([1.0f32, 2.0]);
        assert_eq!(x.item::<f32>().unwrap_err().to_string(), "f32[2] has 2 elements, not one");
        assert!(Tensor::zeros(DType::F32, [0]).unwrap().item::<f32>().is_err());
        let wrong = <[f32; 3]>::try_from(&x).unwrap_err().to_string();
        assert_eq!(wrong, "f32[2] has 2 elements, not 3");
        assert!(matches!(x.to_vec::<i64>(), Err(Error::WrongElement { .. })));
    }
}
