# Doctests of Nx 0.9.2 that fail on Olivine.Backend, with the reason of each: on every device, and on some.

digit = "last digit: computed in f32, by Nx.BinaryBackend in f64"
sigil = "sigils of several letters, which Elixir 1.14 does not have; fails on Nx.BinaryBackend as well"
pivot = "pivots of the eliminated matrix, as in LAPACK; Nx.BinaryBackend chooses them before it eliminates"
eigh = "the algorithm of Nx itself; Nx.BinaryBackend has another, which ends at other vectors"
svd = "the iterations of Nx's svd end where their roundings take them; neither result has more than two digits"

%{
  all: %{
    "module Nx (5)" => sigil,
    "module Nx (6)" => sigil,
    "Nx.phase/1 (552)" => sigil,
    "Nx.sigil_MAT/2 (945)" => sigil,
    "Nx.sigil_VEC/2 (946)" => sigil,
    "Nx.cbrt/1 (163)" => digit,
    "Nx.erfc/1 (293)" => digit,
    "Nx.erfc/1 (294)" => digit,
    "Nx.expm1/1 (297)" => digit,
    "Nx.expm1/1 (298)" => digit,
    "Nx.sigmoid/1 (683)" => digit,
    "Nx.LinAlg.cholesky/1 (5)" => digit,
    "Nx.LinAlg.determinant/1 (12)" => digit,
    "Nx.LinAlg.determinant/1 (13)" => digit,
    "Nx.LinAlg.determinant/1 (14)" => digit,
    "Nx.LinAlg.matrix_power/2 (46)" => digit,
    "Nx.LinAlg.triangular_solve/3 (96)" => digit,
    "Nx.LinAlg.triangular_solve/3 (99)" => digit,
    "Nx.LinAlg.lu/2 (36)" => pivot,
    "Nx.LinAlg.lu/2 (38)" => pivot,
    "Nx.LinAlg.lu/2 (39)" => pivot,
    "Nx.LinAlg.eigh/2 (21)" => eigh,
    "Nx.LinAlg.eigh/2 (22)" => eigh,
    "Nx.LinAlg.eigh/2 (23)" => eigh,
    "Nx.LinAlg.least_squares/3 (29)" => svd,
    "Nx.LinAlg.least_squares/3 (30)" => svd,
    "Nx.LinAlg.least_squares/3 (31)" => svd,
    "Nx.LinAlg.pinv/2 (75)" => svd
  },
  vulkan: %{
    "Nx.acos/1 (26)" => digit,
    "Nx.acos/1 (27)" => digit,
    "Nx.asin/1 (102)" => digit,
    "Nx.asinh/1 (104)" => digit,
    "Nx.atan2/2 (108)" => digit,
    "Nx.atan2/2 (109)" => digit,
    "Nx.cos/1 (199)" => digit,
    "Nx.cosh/1 (200)" => digit,
    "Nx.cosh/1 (201)" => digit,
    "Nx.sin/1 (685)" => digit,
    "Nx.sin/1 (686)" => digit,
    "Nx.tan/1 (785)" => digit,
    "Nx.tan/1 (786)" => digit,
    "Nx.tanh/1 (788)" => digit,
    "Nx.LinAlg.svd/2 (94)" => digit,
    "Nx.LinAlg.svd/2 (95)" => digit
  }
}
