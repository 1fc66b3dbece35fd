defmodule Olivine.Native do
  @moduledoc false
  # The NIF itself. `Olivine.NativeV`, `Olivine.Array`, `Olivine.Model` and `Olivine.Chain` are the interface.
  @on_load :load

  def load do
    case :code.priv_dir(:olivine) do
      {:error, _} = unknown -> unknown
      folder -> folder |> Path.join("libolivine_nif") |> String.to_charlist() |> :erlang.load_nif(0)
    end
  end

  # The device, opened by the first call that needs it.
  def open(_device), do: unloaded()
  def devices, do: unloaded()
  def memory(_device), do: unloaded()

  # Buffers.
  def buf_alloc(_device, _bytes), do: unloaded()
  def buf_upload(_device, _binary), do: unloaded()
  def buf_upload_into(_buffer, _binary), do: unloaded()
  def buf_download(_buffer), do: unloaded()
  def buf_byte_size(_buffer), do: unloaded()
  def apply_binary(_out, _a, _b, _n, _op, _spv), do: unloaded()
  def apply_unary(_out, _a, _n, _op, _spv), do: unloaded()
  def matmul(_out, _a, _b, _m, _n, _k, _spv), do: unloaded()
  def reduce_axis(_out, _a, _outer, _reduce, _inner, _op, _spv), do: unloaded()
  def transpose_2d(_out, _a, _m, _n, _spv), do: unloaded()
  def leapfrog_chain_synth(_q, _p, _extras, _push, _k, _spv), do: unloaded()

  # Lazy arrays.
  def array_from_binary(_device, _dtype, _shape, _binary), do: unloaded()
  def array_apply(_device, _text, _operands), do: unloaded()
  def array_to_binary(_array), do: unloaded()
  def array_eval(_array), do: unloaded()
  def array_wait(_array), do: unloaded()
  def array_settle(_array), do: unloaded()

  # Chains.
  def chain_spirv(_text, _dtype), do: unloaded()
  def chain_bind(_device, _text, _dtype, _d, _observations, _data, _indices), do: unloaded()
  def chain_run(_chain, _steps, _step_size, _inverse_mass, _q, _p), do: unloaded()

  # Models.
  def model_load(_device, _path), do: unloaded()
  def model_run(_model, _inputs), do: unloaded()
  def model_ports(_model), do: unloaded()

  defp unloaded, do: :erlang.nif_error(:nif_not_loaded)
end
