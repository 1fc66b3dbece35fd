defmodule Olivine.Model do
  @moduledoc """
  A model file, compiled for the device.

      model = Olivine.Model.load!("mnist.onnx")
      %{"probabilities" => {:f32, {1, 10}, binary}} = Olivine.Model.run!(model, %{"image" => {:f32, {1, 1, 28, 28}, image}})

  Inputs are tuples `{dtype, shape, binary}` (packed, native endian, row-major) or tensors of Nx; results are tensors where
  all inputs are, and tuples otherwise. The format is recognised by content. Graphs are compiled once for each combination of
  input shapes. A model may be used by many processes at once.
  """

  alias Olivine.{Error, Native}

  @enforce_keys [:ref, :inputs, :outputs]
  defstruct [:ref, :inputs, :outputs]

  @typedoc "An input or output: its name, dtype and sizes, which are names or `nil` where a run chooses them."
  @type port_info :: {String.t(), atom, [non_neg_integer | String.t() | nil] | nil}
  @type t :: %__MODULE__{ref: reference, inputs: [port_info], outputs: [port_info]}
  @type value :: {Olivine.Array.dtype(), tuple, binary} | struct

  @doc "Loads and compiles a model."
  @spec load(Path.t()) :: {:ok, t} | {:error, Error.t()}
  def load(path) do
    with {:ok, ref} <- Native.model_load(Olivine.device(), IO.chardata_to_string(path)),
         {:ok, {inputs, outputs}} <- Native.model_ports(ref) do
      {:ok, %__MODULE__{ref: ref, inputs: inputs, outputs: outputs}}
    else
      error -> {:error, Error.new(error)}
    end
  end

  @doc "As `load/1`, but raises."
  @spec load!(Path.t()) :: t
  def load!(path), do: ok!(load(path))

  @doc "Runs the model: a map of its outputs by name."
  @spec run(t, %{String.t() => value}) :: {:ok, %{String.t() => value}} | {:error, Error.t()}
  def run(%__MODULE__{} = model, inputs) do
    values = Enum.map(inputs, fn {name, value} -> to_native(model, to_string(name), value) end)
    tensors = values != [] and Enum.all?(inputs, fn {_, value} -> tensor?(value) end)

    case Native.model_run(model.ref, values) do
      {:ok, outputs} -> {:ok, Map.new(outputs, &from_native(&1, tensors))}
      error -> {:error, Error.new(error)}
    end
  end

  @doc "As `run/2`, but raises."
  @spec run!(t, %{String.t() => value}) :: %{String.t() => value}
  def run!(model, inputs), do: ok!(run(model, inputs))

  defp ok!({:ok, value}), do: value
  defp ok!({:error, error}), do: raise(error)

  @doc false
  def tensor?(value), do: is_struct(value) and value.__struct__ == Nx.Tensor

  # `{name, dtype, sizes, binary}`.
  @doc false
  def to_native(_model, name, {dtype, shape, binary})
      when is_atom(dtype) and is_tuple(shape) and is_binary(binary),
      do: {name, dtype, Tuple.to_list(shape), binary}

  def to_native(model, name, value) do
    if not tensor?(value) do
      raise ArgumentError, "input #{name} must be {dtype, shape, binary} or an Nx tensor, got: #{inspect(value)}"
    end

    {name, dtype(value.type, declared(model, name)), Tuple.to_list(value.shape), apply(Nx, :to_binary, [value])}
  end

  defp declared(model, name), do: Enum.find_value(model.inputs, fn {port, dtype, _} -> if port == name, do: dtype end)

  # Nx has no booleans; bytes are given where a model takes them.
  defp dtype({:u, 8}, :bool), do: :bool
  defp dtype({:s, size}, _), do: :"i#{size}"
  defp dtype({:u, 64}, _), do: :i64
  defp dtype({kind, size}, _), do: :"#{kind}#{size}"

  @doc false
  def from_native({name, dtype, shape, binary}, false), do: {name, {dtype, List.to_tuple(shape), binary}}

  def from_native({name, dtype, shape, binary}, true) do
    tensor = apply(Nx, :from_binary, [binary, nx_type(dtype)])
    {name, apply(Nx, :reshape, [tensor, List.to_tuple(shape)])}
  end

  defp nx_type(:bool), do: {:u, 8}
  defp nx_type(:bf16), do: {:bf, 16}

  defp nx_type(dtype) do
    {kind, size} = dtype |> Atom.to_string() |> String.split_at(1)
    {if(kind == "i", do: :s, else: String.to_existing_atom(kind)), String.to_integer(size)}
  end
end
