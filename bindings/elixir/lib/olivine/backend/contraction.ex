if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.Backend.Contraction do
    @moduledoc false
    # Sums of products.

    import Olivine.Backend.Ops
    alias Olivine.Backend.{Data, Host, Types}

    def dot(%{type: type} = out, left, left_contract, left_batch, right, right_contract, right_batch) do
      axes = [lhs_batch: left_batch, rhs_batch: right_batch, lhs_contract: left_contract, rhs_contract: right_contract]
      run = fn a, b -> op("dot_general", [a, b], axes) end
      {a, b} = {Data.load(left, type), Data.load(right, type)}
      Data.store(out, if(Types.complex?(type), do: complex(a, b, run), else: run.(a, b)))
    end

    # A bilinear function of complex numbers from that of real ones.
    defp complex(a, b, run) do
      {ar, ai} = {Types.part(a, 0), Types.part(a, 1)}
      {br, bi} = {Types.part(b, 0), Types.part(b, 1)}
      Types.pair(sub(run.(ar, br), run.(ai, bi)), add(run.(ar, bi), run.(ai, br)))
    end

    def conv(%{type: type} = out, tensor, kernel, options) do
      {x, w} = {Data.load(tensor, type), Data.load(kernel, type)}
      run = fn x, w -> conv_real(x, w, options) end
      Data.store(out, if(Types.complex?(type), do: complex(x, w, run), else: run.(x, w)))
    end

    defp conv_real(x, w, options) do
      x = transpose(x, options[:input_permutation])
      w = transpose(w, options[:kernel_permutation])
      spatial = length(x.shape) - 2
      # Graphs convolve over one to three axes.
      if spatial not in 1..3, do: Host.compute()
      {x, pads} = x |> dilated(options[:input_dilation]) |> cut(options[:padding])
      batch_groups = options[:batch_group_size]
      x = split_batch(x, batch_groups)

      attributes = [
        window: [strides: options[:strides], pads: pads, dilations: options[:kernel_dilation]],
        groups: options[:feature_group_size] * batch_groups,
        bias: false,
        epilogue: nil
      ]

      "conv" |> op([x, w], attributes) |> transpose(inverse(options[:output_permutation]))
    end

    # Zeros between the elements of spatial axes.
    defp dilated(x, dilations) do
      dilations
      |> Enum.with_index(2)
      |> Enum.reduce(x, fn
        {1, _axis}, x ->
          x

        {dilation, axis}, x ->
          {before, [size | behind]} = Enum.split(x.shape, axis)
          pads = [{0, 0}, {0, 0}, {0, dilation - 1}, {0, 0}]

          x
          |> reshape([Enum.product(before), size, 1, Enum.product(behind)])
          |> then(&op("pad", [&1], pads: pads, mode: :constant, value: 0))
          |> reshape(before ++ [size * dilation] ++ behind)
          |> slice_axis(axis, 0, (size - 1) * dilation + 1)
      end)
    end

    # A convolution's own padding is not negative.
    defp cut(x, padding) do
      if Enum.any?(padding, fn {low, high} -> low < 0 or high < 0 end) do
        {op("pad", [x], pads: [{0, 0}, {0, 0} | padding], mode: :constant, value: 0),
         List.duplicate({0, 0}, length(padding))}
      else
        {x, padding}
      end
    end

    # Groups of the batch become groups of channels.
    defp split_batch(x, 1), do: x

    defp split_batch(%{shape: [n, c | spatial]} = x, groups) do
      axes = Enum.to_list(2..(length(spatial) + 2)//1)

      x
      |> reshape([groups, div(n, groups), c | spatial])
      |> transpose([1, 0 | axes])
      |> reshape([div(n, groups), groups * c | spatial])
    end

    defp inverse(perm), do: perm |> Enum.with_index() |> Enum.sort() |> Enum.map(&elem(&1, 1))
  end
end
