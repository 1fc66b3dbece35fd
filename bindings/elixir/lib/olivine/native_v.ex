defmodule Olivine.NativeV do
  @moduledoc """
  Device buffers and immediate operations by op code.

  A buffer is bytes on the device; each operation says what they are. Handles are references: garbage collection frees the
  memory, on a thread of its own, and work in flight keeps what it needs. Operations are submitted and not waited for;
  `buf_download/1` waits. An output may also be an operand.

  ## Results

  `:ok`, `{:ok, result}`, or

    * `{:error, :size_mismatch}` – a buffer is too small for the sizes, or a binary has another size than the buffer
    * `{:error, :bad_input, message}` – an argument that no device could accept: a negative or absurd size, an unknown op
      code, an operation that the dtype does not have, a reference that is not a buffer's, a module that is not valid
      SPIR-V or that does not fit the call
    * `{:error, :spv_read_failed, message}` – a module's file cannot be read
    * `{:error, :dispatch_failed, message}` – the device or its driver failed, or there is none
    * `{:error, :out_of_memory, message}`

  An argument of another type than the documented one (a float for a size, an atom for a buffer, a bitstring that is not a
  binary) raises `ArgumentError`.

  ## Modules

  `spv` chooses the kernel:

    * `:builtin`, or `{:builtin, dtype}` with `:f32`, `:f64` or `:s32` – Olivine's own; f32 unless said otherwise
    * a binary of SPIR-V, or the path of such a file – run as it is, on Vulkan: buffers are bindings of set 0 in the order of
      the operands, then the output; sizes are push constants; specialisation constant 0 is the op code, and a
      module without it has operation 0 alone. Buffers must have four bytes for each element at least. Any other binary is a
      path.

  ## Op codes

  A number means the same operation for every dtype, and is never given to another.

  | | |
  |---|---|
  | binary | 0 add, 1 mul, 2 sub, 3 div, 4 pow, 5 max, 6 min, 7 rem, 8 mod, 9 atan2, 10 and, 11 or, 12 xor, 13 shl, 14 shr |
  | unary | 0 exp, 1 log, 2 sqrt, 3 abs, 4 neg, 5 sigmoid, 6 tanh, 7 relu, 8 ceil, 9 floor, 10 sign, 11 reciprocal, 12 square, … |
  | reduce | 0 sum, 1 max, 2 min, 3 product, 4 mean, … |
  """

  alias Olivine.Native

  @type buffer :: reference
  @type dtype :: :f32 | :f64 | :s32
  @type spv :: :builtin | {:builtin, dtype} | binary | Path.t()
  @type error ::
          {:error, :size_mismatch}
          | {:error, :bad_input | :spv_read_failed | :dispatch_failed | :out_of_memory, String.t()}

  @doc "A buffer of so many zero bytes; none is legal."
  @spec buf_alloc(non_neg_integer) :: {:ok, buffer} | error
  def buf_alloc(bytes), do: Native.buf_alloc(Olivine.device(), bytes)

  @doc "A buffer with a copy of a binary."
  @spec buf_upload(binary) :: {:ok, buffer} | error
  def buf_upload(binary), do: Native.buf_upload(Olivine.device(), binary)

  @doc "Overwrites all of a buffer with a binary of its size."
  @spec buf_upload_into(buffer, binary) :: :ok | error
  def buf_upload_into(buffer, binary), do: Native.buf_upload_into(buffer, binary)

  @doc "The bytes of a buffer, after all that was submitted to it."
  @spec buf_download(buffer) :: {:ok, binary} | error
  def buf_download(buffer), do: Native.buf_download(buffer)

  @doc "The size of a buffer."
  @spec buf_byte_size(buffer) :: {:ok, non_neg_integer} | error
  def buf_byte_size(buffer), do: Native.buf_byte_size(buffer)

  @doc """
  `out[i] = a[i] op b[i]` for the first `n` elements.

  A module has bindings a, b, out and push constant `n`; it is run with `ceil(n / local size)` groups.
  """
  @spec apply_binary(buffer, buffer, buffer, non_neg_integer, non_neg_integer, spv) :: :ok | error
  def apply_binary(out, a, b, n, op, spv), do: Native.apply_binary(out, a, b, n, op, spv)

  @doc """
  `out[i] = op(a[i])` for the first `n` elements.

  A module has bindings a, out and push constant `n`.
  """
  @spec apply_unary(buffer, buffer, non_neg_integer, non_neg_integer, spv) :: :ok | error
  def apply_unary(out, a, n, op, spv), do: Native.apply_unary(out, a, n, op, spv)

  @doc """
  The matmul `out[m, n] = a[m, k] · b[k, n]`, all row-major.

  A module has bindings a, b, out and push constants `m, n, k`; it is run with one workgroup for each tile of its local size:
  `ceil(n / x)` by `ceil(m / y)`.
  """
  @spec matmul(buffer, buffer, buffer, non_neg_integer, non_neg_integer, non_neg_integer, spv) :: :ok | error
  def matmul(out, a, b, m, n, k, spv), do: Native.matmul(out, a, b, m, n, k, spv)

  @doc """
  Reduces the middle axis of `a[outer, reduce_size, inner]` to `out[outer, inner]`.

  A module has bindings a, out and push constants `outer, reduce_size, inner, op`.
  """
  @spec reduce_axis(buffer, buffer, non_neg_integer, non_neg_integer, non_neg_integer, non_neg_integer, spv) ::
          :ok | error
  def reduce_axis(out, a, outer, reduce_size, inner, op, spv),
    do: Native.reduce_axis(out, a, outer, reduce_size, inner, op, spv)

  @doc """
  The transpose `out[n, m]` of `a[m, n]`.

  A module has bindings a, out and push constants `m, n`.
  """
  @spec transpose_2d(buffer, buffer, non_neg_integer, non_neg_integer, spv) :: :ok | error
  def transpose_2d(out, a, m, n, spv), do: Native.transpose_2d(out, a, m, n, spv)

  @doc """
  A chain of `k` leapfrog steps of a log-density, in one dispatch.

  `q` and `p` hold the position and the momentum of dimension d; `extras` the observations, then the inverse masses:
  `obs[n_obs] ++ inv_mass[d]`. `push` is `u32 K, n_obs, d, pad`, then ε as f32 (20 bytes) or f64 (24 bytes), little-endian;
  the width of ε is that of all elements, and up to 128 bytes are passed on as they are. `k` must be K.

  The result is four new buffers: `q_chain[K, d]`, `p_chain[K, d]`, `grad_chain[K, d]` and `logp_chain[K]`. Row i is the
  state after step i + 1, and `logp_chain[i]` the log-density at `q_chain[i]`.

  `spv` is a module of that contract (bindings 0 to 2 are the operands, 3 to 6 the results; `Olivine.Chain.spirv/2` prints
  one), `{:density, text}` for a density in Olivine's language, which runs on every device, or `:builtin`, the standard
  normal. See `Olivine.Chain`.
  """
  @spec leapfrog_chain_synth(buffer, buffer, buffer, binary, pos_integer, spv | {:density, String.t()}) ::
          {:ok, {buffer, buffer, buffer, buffer}} | error
  def leapfrog_chain_synth(q, p, extras, push, k, spv), do: Native.leapfrog_chain_synth(q, p, extras, push, k, spv)
end
