defmodule Olivine.Array do
  @moduledoc """
  A tensor on the device whose operations wait until its elements are asked for.

  Operations are those of Olivine's graphs, by the names of their text form (`docs/ops.md` of the repository lists them):

      iex> x = Olivine.Array.from_binary(<<1.0::float-32-native, 4.0::float-32-native>>, :f32, [2])
      iex> y = Olivine.Array.op("sqrt", [x]) |> then(&Olivine.Array.op("reduce_sum", [&1], axes: [0], keepdims: false))
      iex> Olivine.Array.to_binary(y)
      <<3.0::float-32-native>>

  Nothing runs before `to_binary/1`; then all of it is one graph. Operands broadcast as NumPy's do, but dtypes must agree.
  dtypes are `:f32`, `:f16`, `:bf16`, `:f64`, `:i8`, `:u8`, `:i16`, `:i32`, `:u32`, `:i64` and `:bool`.

  What Olivine refuses raises `Olivine.Error`.
  """

  alias Olivine.Native

  @enforce_keys [:ref, :dtype, :shape]
  defstruct [:ref, :dtype, :shape]

  @type dtype :: :f32 | :f16 | :bf16 | :f64 | :i8 | :u8 | :i16 | :i32 | :u32 | :i64 | :bool
  @type t :: %__MODULE__{ref: reference, dtype: dtype, shape: [non_neg_integer]}

  @doc "Elements of the host: packed, native endian, in row-major order."
  @spec from_binary(binary, dtype, [non_neg_integer]) :: t
  def from_binary(binary, dtype, shape) when is_binary(binary) and is_atom(dtype) and is_list(shape) do
    ref = ok!(Native.array_from_binary(Olivine.device(), dtype, shape, binary))
    %__MODULE__{ref: ref, dtype: dtype, shape: shape}
  end

  @doc "The elements; waits for them."
  @spec to_binary(t) :: binary
  def to_binary(%__MODULE__{ref: ref}), do: ok!(Native.array_to_binary(ref))

  @doc "Submits what the array needs, without waiting for it."
  @spec eval(t) :: t
  def eval(%__MODULE__{ref: ref} = array) do
    ok!(Native.array_eval(ref))
    array
  end

  @doc "Submits what the array needs, and waits until it is computed."
  @spec wait(t) :: t
  def wait(%__MODULE__{ref: ref} = array) do
    ok!(Native.array_wait(ref))
    array
  end

  @doc "The one result of an operation."
  @spec op(String.t(), [t], keyword) :: t
  def op(name, operands, attributes \\ []) do
    [result] = ops(name, operands, attributes)
    result
  end

  @doc "The results of an operation."
  @spec ops(String.t(), [t], keyword) :: [t]
  def ops(name, operands, attributes \\ []) do
    text = if attributes == [], do: name, else: IO.iodata_to_binary([name, " ", record(attributes)])
    refs = Enum.map(operands, fn %__MODULE__{ref: ref} -> ref end)
    # An operation without operands must find the device open: building graphs does not leave the scheduler.
    if refs == [], do: opened!()

    {[{first, _, _} | _] = results, long} = ok!(Native.array_apply(Olivine.device(), text, refs))
    if long, do: ok!(Native.array_settle(first))
    for {ref, dtype, shape} <- results, do: %__MODULE__{ref: ref, dtype: dtype, shape: shape}
  end

  defp opened! do
    with {:error, error} <- Olivine.open(), do: raise(error)
  end

  @doc """
  A number that is part of the graph, not an input of it: graphs that differ in it are compiled apart.
  """
  @spec literal(number | :nan | :infinity | :neg_infinity, dtype) :: t
  def literal(number, dtype) do
    op("reshape", [op("range", [], dtype: dtype, start: number, step: 0, count: 1)], dims: [])
  end

  defp record(fields) do
    fields = Enum.map(fields, fn {name, value} -> [Atom.to_string(name), "=", attribute(value)] end)
    ["{", Enum.intersperse(fields, ", "), "}"]
  end

  defp attribute(value) when is_integer(value), do: Integer.to_string(value)
  defp attribute(value) when is_float(value), do: Float.to_string(value)
  defp attribute(:infinity), do: "inf"
  defp attribute(:neg_infinity), do: "-inf"
  defp attribute(nil), do: "none"
  defp attribute(value) when is_atom(value), do: Atom.to_string(value)
  defp attribute(value) when is_binary(value), do: inspect(value)
  defp attribute({first, second}), do: attribute([first, second])
  defp attribute([{name, _} | _] = fields) when is_atom(name), do: record(fields)
  defp attribute(values) when is_list(values), do: ["[", Enum.intersperse(Enum.map(values, &attribute/1), ", "), "]"]

  defp ok!({:ok, value}), do: value
  defp ok!(:ok), do: :ok
  defp ok!(error), do: raise(Olivine.Error.new(error))
end
