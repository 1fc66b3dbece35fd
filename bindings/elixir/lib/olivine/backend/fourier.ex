if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Fourier do
    @moduledoc false
    # Discrete Fourier transforms.

    import Olivine.Backend.Ops
    alias Olivine.Backend.Data

    def fft(out, tensor, options), do: transform("fft", out, tensor, options)
    def ifft(out, tensor, options), do: transform("ifft", out, tensor, options)

    defp transform(operation, %{type: type} = out, tensor, options) do
      attributes = [axis: options[:axis], n: options[:length], norm: :backward]
      result = op(operation, [Data.load(tensor, type)], attributes)
      small = op("le", [op("abs", [result]), options[:eps]])
      Data.store(out, where(small, 0, result))
    end
  end
end
