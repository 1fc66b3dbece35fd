defmodule Olivine.Chain do
  @moduledoc """
  Chains of leapfrog steps of a log-density, what Hamiltonian Monte Carlo spends its time on.

      # y ~ Normal(q[0], exp(q[1]))
      chain = Olivine.Chain.bind!("sum_obs(-0.5 * ((y - q[0]) / exp(q[1]))^2 - q[1])", 2, observations: [1.2, 0.7, 1.9])
      %{q: q, density: density} = Olivine.Chain.run!(chain, [0.0, 0.0], [0.3, -1.0], steps: 32, step_size: 0.05)

  A density is text: its language is described in the repository's `docs/guides/chains.md`. It is differentiated, and all
  steps of a chain run in one submission to the device. `spirv/2` prints the module for `Olivine.NativeV.leapfrog_chain_synth/6`.
  """

  alias Olivine.{Error, Native}

  @enforce_keys [:ref, :d]
  defstruct [:ref, :d]

  @type t :: %__MODULE__{ref: reference, d: pos_integer}
  @type trajectory :: %{q: [[float]], p: [[float]], gradient: [[float]], density: [float]}

  @doc """
  Compiles a density for positions of `d` coordinates and brings its data to the device.

  Options: `:type` (`:f64`, or `:f32`), `:observations`, `:data` (a map of names to lists of numbers: scalars, columns,
  vectors, or matrices row by row) and `:indices` (a map of names to lists of integers).
  """
  @spec bind(String.t(), pos_integer, keyword) :: {:ok, t} | {:error, Error.t()}
  def bind(density, d, options \\ []) do
    options = Keyword.validate!(options, type: :f64, observations: [], data: %{}, indices: %{})
    data = for {name, numbers} <- options[:data], do: {to_string(name), packed(numbers)}

    indices =
      for {name, numbers} <- options[:indices],
          do: {to_string(name), for(i <- numbers, into: <<>>, do: <<i::32-native>>)}

    obs = packed(options[:observations])

    case Native.chain_bind(Olivine.device(), density, options[:type], d, obs, data, indices) do
      {:ok, ref} -> {:ok, %__MODULE__{ref: ref, d: d}}
      error -> {:error, Error.new(error)}
    end
  end

  @doc "As `bind/3`, but raises."
  @spec bind!(String.t(), pos_integer, keyword) :: t
  def bind!(density, d, options \\ []), do: ok!(bind(density, d, options))

  @doc """
  Runs a chain from a position and a momentum: the states after each step, and gradient and log-density there.

  Options: `:steps` and `:step_size`, both required, and `:inverse_mass`, ones unless given.
  """
  @spec run(t, [number], [number], keyword) :: {:ok, trajectory} | {:error, Error.t()}
  def run(%__MODULE__{} = chain, q, p, options) do
    with {:ok, [trajectory]} <- run_batch(chain, [q], [p], options), do: {:ok, trajectory}
  end

  @doc "As `run/4`, but raises."
  @spec run!(t, [number], [number], keyword) :: trajectory
  def run!(chain, q, p, options), do: ok!(run(chain, q, p, options))

  @doc "Runs several chains at once."
  @spec run_batch(t, [[number]], [[number]], keyword) :: {:ok, [trajectory]} | {:error, Error.t()}
  def run_batch(%__MODULE__{ref: ref, d: d}, qs, ps, options) do
    options = Keyword.validate!(options, [:steps, :step_size, inverse_mass: List.duplicate(1.0, d)])
    {steps, step_size} = {Keyword.fetch!(options, :steps), Keyword.fetch!(options, :step_size) * 1.0}
    {q, p} = {packed(List.flatten(qs)), packed(List.flatten(ps))}

    case Native.chain_run(ref, steps, step_size, packed(options[:inverse_mass]), q, p) do
      {:ok, {q, p, gradient, density}} ->
        [q, p, gradient] = for part <- [q, p, gradient], do: part |> rows(d) |> Enum.chunk_every(max(steps, 1))
        density = density |> rows(max(steps, 1))
        {:ok, Enum.zip_with([q, p, gradient, density], fn [q, p, g, l] -> %{q: q, p: p, gradient: g, density: l} end)}

      error ->
        {:error, Error.new(error)}
    end
  end

  @doc "The SPIR-V module of a density in `:f32` or `:f64`, for the dispatch contract of `Olivine.NativeV`."
  @spec spirv(String.t(), :f32 | :f64) :: {:ok, binary} | {:error, Error.t()}
  def spirv(density, type) do
    with {:error, _, _} = error <- Native.chain_spirv(density, type), do: {:error, Error.new(error)}
  end

  defp ok!({:ok, value}), do: value
  defp ok!({:error, error}), do: raise(error)

  defp packed(numbers), do: for(x <- numbers, into: <<>>, do: <<x * 1.0::64-float-native>>)

  # NaN and the infinities, which Elixir has no floats for, are atoms.
  defp rows(binary, size), do: for(<<x::binary-8 <- binary>>, do: number(x)) |> Enum.chunk_every(size)

  defp number(<<x::64-float-native>>), do: x

  defp number(<<bits::64-native>>) do
    case <<bits::64>> do
      <<0::1, 0x7FF::11, 0::52>> -> :infinity
      <<1::1, 0x7FF::11, 0::52>> -> :neg_infinity
      _ -> :nan
    end
  end
end
