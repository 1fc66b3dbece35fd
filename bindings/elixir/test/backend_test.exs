if Code.ensure_loaded?(Nx.Backend) do
  defmodule Olivine.BackendTest do
    # Operations against Nx.BinaryBackend, where the doctests have no example.
    use ExUnit.Case, async: true

    setup do
      Nx.default_backend(Olivine.Backend)
      :ok
    end

    # The same computation on both backends, with the same result.
    defp same(fun) do
      ours = fun.()
      Nx.default_backend(Nx.BinaryBackend)
      theirs = fun.()
      Nx.default_backend(Olivine.Backend)
      assert ours.type == theirs.type
      assert ours.shape == theirs.shape
      assert match?(%Olivine.Backend{}, ours.data)
      assert Nx.to_flat_list(ours) == Nx.to_flat_list(theirs)
    end

    @integers [u: 8, u: 16, u: 32, u: 64, s: 8, s: 16, s: 32, s: 64]

    # The edges of a type, and numbers that wrap when they are added or multiplied.
    defp edges({:u, size}), do: [0, 1, 2, 3, 7, 2 ** (size - 1) - 1, 2 ** (size - 1), 2 ** size - 2, 2 ** size - 1]
    defp edges({:s, size}), do: [0, 1, -1, 2, -3, 7, -(2 ** (size - 1)) + 1, 2 ** (size - 1) - 2, 2 ** (size - 1) - 1]

    test "integer arithmetic wraps and compares as Nx does, in every type" do
      for type <- @integers do
        tensor = fn -> Nx.tensor(edges(type), type: type) end
        other = fn -> Nx.tensor(Enum.map(Enum.reverse(edges(type)), &if(&1 == 0, do: 1, else: &1)), type: type) end

        for name <-
              [:add, :subtract, :multiply, :quotient, :remainder, :min, :max] ++
                [:bitwise_and, :bitwise_or, :bitwise_xor, :less, :greater_equal, :equal, :logical_xor] do
          same(fn -> apply(Nx, name, [tensor.(), other.()]) end)
        end

        for name <- [:negate, :bitwise_not, :sign, :population_count, :count_leading_zeros] do
          same(fn -> apply(Nx, name, [tensor.()]) end)
        end

        same(fn -> Nx.left_shift(tensor.(), Nx.tensor(3, type: type)) end)
        same(fn -> Nx.right_shift(tensor.(), Nx.tensor(3, type: type)) end)
        same(fn -> Nx.sum(tensor.()) end)
        same(fn -> Nx.reduce_max(tensor.()) end)
        same(fn -> Nx.reduce_min(tensor.()) end)
        same(fn -> Nx.argmax(tensor.()) end)
        same(fn -> Nx.argmin(tensor.(), tie_break: :high) end)
        same(fn -> Nx.sort(tensor.(), direction: :desc) end)
        same(fn -> Nx.argsort(tensor.()) end)
        same(fn -> Nx.cumulative_min(tensor.()) end)
        same(fn -> Nx.cumulative_sum(tensor.(), reverse: true) end)
        same(fn -> Nx.window_max(tensor.(), {3}, padding: :same) end)
        same(fn -> Nx.window_min(tensor.(), {3}, padding: :same) end)
        same(fn -> Nx.clip(tensor.(), Nx.tensor(1, type: type), Nx.tensor(7, type: type)) end)
      end
    end

    test "conversions between all types" do
      types = @integers ++ [f: 8, f: 16, bf: 16, f: 32, f: 64]

      for from <- types, to <- types do
        numbers = if elem(from, 0) == :u or elem(to, 0) == :u, do: [0, 1, 2, 96], else: [0, 1, -2, 96]
        # Nx 0.9 reads an f8 of 0 as 2^-15.
        numbers = if {:f, 8} in [from, to], do: tl(numbers), else: numbers
        same(fn -> numbers |> Nx.tensor(type: from) |> Nx.as_type(to) end)
      end

      for to <- @integers, do: same(fn -> Nx.tensor([:infinity, :nan, 1.75]) |> Nx.as_type(to) end)

      for size <- [2, 4],
          kind <- [:u, :s],
          do: same(fn -> Nx.tensor([0, 1, 2, 3, 1], type: {kind, size}) |> Nx.add(1) end)
    end

    test "NaN and the infinities" do
      numbers = fn -> Nx.tensor([1.0, :nan, :neg_infinity, -0.5, :infinity, :nan, 2.0]) end
      other = fn -> Nx.tensor([:nan, 1.0, 3.0, :infinity, :infinity, :nan, -2.0]) end

      for name <- [:min, :max, :less, :less_equal, :greater, :equal, :not_equal] do
        same(fn -> apply(Nx, name, [numbers.(), other.()]) end)
      end

      for name <- [:is_nan, :is_infinity, :argmax, :argmin, :reduce_max, :reduce_min, :sort, :argsort, :cumulative_max] do
        same(fn -> apply(Nx, name, [numbers.()]) end)
      end

      same(fn -> Nx.argmax(numbers.(), tie_break: :high) end)
      same(fn -> Nx.sort(numbers.(), direction: :desc) end)
      same(fn -> Nx.clip(numbers.(), -1.0, 1.0) end)
      same(fn -> Nx.window_max(numbers.(), {2}) end)
    end

    test "rounding is away from zero" do
      same(fn -> Nx.round(Nx.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -2.5, 8_388_609.0])) end)
      for name <- [:floor, :ceil, :sign, :abs], do: same(fn -> apply(Nx, name, [Nx.tensor([0.5, -1.5, 0.0, 2.0])]) end)
    end

    test "slices and updates at positions that the device computes" do
      same(fn ->
        start = Nx.sum(Nx.iota({3}))
        Nx.slice(Nx.iota({8, 4}), [start, Nx.subtract(start, 9)], [3, 2], strides: [2, 1])
      end)

      same(fn ->
        start = Nx.add(Nx.sum(Nx.iota({2})), 1)
        Nx.put_slice(Nx.iota({4, 5}), [start, 0], Nx.broadcast(-1, {2, 3}))
      end)

      same(fn -> Nx.put_slice(Nx.iota({4, 5}), [1, 9], Nx.broadcast(-1, {2, 3})) end)
    end

    test "padding before, after, between and less than nothing" do
      configs = [[{1, 2, 3}, {0, 0, 1}], [{-1, 2, 1}, {2, -1, 0}], [{-1, -1, 2}, {0, 0, 0}], [{0, 0, 0}, {1, 1, 0}]]
      for config <- configs, do: same(fn -> Nx.pad(Nx.iota({3, 4}), 7, config) end)
      for config <- configs, do: same(fn -> Nx.pad(Nx.iota({3, 4}), Nx.sum(Nx.iota({3})), config) end)
      same(fn -> Nx.pad(Nx.tensor([1, 2], type: :s64), 9_007_199_254_740_993, [{1, 0, 0}]) end)
    end

    test "windows with strides, padding and dilations" do
      for name <- [:window_sum, :window_product, :window_max, :window_min],
          options <- [[], [padding: :same], [strides: [2, 1]], [window_dilations: [1, 2], padding: [{1, 1}, {0, 2}]]] do
        same(fn -> apply(Nx, name, [Nx.remainder(Nx.iota({5, 6}), 5), {2, 3}, options]) end)
      end
    end

    test "convolutions with groups, dilations and permutations" do
      x = fn shape -> Nx.iota(shape, type: :f32) |> Nx.remainder(7) end

      for options <- [
            [strides: 2, padding: :same],
            [input_dilation: 2, kernel_dilation: [1, 2], padding: [{2, 1}, {3, 3}]],
            [feature_group_size: 2],
            [batch_group_size: 2],
            [padding: [{-1, 0}, {0, -1}]]
          ] do
        channels = if options[:feature_group_size], do: 2, else: 4
        same(fn -> Nx.conv(x.({2, 4, 6, 6}), x.({4, channels, 2, 3}), options) end)
      end

      same(fn ->
        Nx.conv(x.({1, 6, 6, 3}), x.({2, 2, 3, 5}),
          input_permutation: [0, 3, 1, 2],
          kernel_permutation: [3, 2, 0, 1],
          output_permutation: [0, 3, 1, 2]
        )
      end)

      same(fn -> Nx.conv(x.({1, 2, 5}), x.({3, 2, 2})) end)
      same(fn -> Nx.conv(x.({1, 1, 3, 4, 5}), x.({2, 1, 2, 2, 2})) end)
    end

    test "matrices: factors give the matrix back" do
      key = Nx.Random.key(1)
      {a, _} = Nx.Random.normal(key, shape: {3, 20, 20}, type: :f64)
      {p, l, u} = Nx.LinAlg.lu(a)
      assert close(p |> Nx.dot([2], [0], l, [1], [0]) |> Nx.dot([2], [0], u, [1], [0]), a, 1.0e-12)
      b = Nx.iota({3, 20, 2}, type: :f64)
      x = Nx.LinAlg.triangular_solve(u, b, lower: false)
      assert close(Nx.dot(u, [2], [0], x, [1], [0]), b, 1.0e-6)
      x = Nx.LinAlg.triangular_solve(l, b)
      assert close(Nx.dot(l, [2], [0], x, [1], [0]), b, 1.0e-9)
    end

    defp close(a, b, tolerance), do: Nx.to_number(Nx.reduce_max(Nx.abs(Nx.subtract(a, b)))) < tolerance

    test "erfc, erf_inv and cbrt over their range" do
      x = Enum.map(-60..60, &(&1 / 10))

      for {type, tolerance} <- [{{:f, 32}, 1.0e-6}, {{:f, 64}, 1.0e-13}] do
        erfc = Nx.tensor(x, type: type) |> Nx.erfc() |> Nx.to_flat_list()
        for {got, x} <- Enum.zip(erfc, x), do: assert_in_delta(got / erfc_exact(x, type), 1.0, tolerance)
        cbrt = Nx.tensor(x, type: type) |> Nx.pow(3) |> Nx.cbrt() |> Nx.to_flat_list()
        for {got, x} <- Enum.zip(cbrt, x), do: assert_in_delta(got, x, tolerance * max(abs(x), 1.0))
      end

      # The inverse of erf is what erf makes of it.
      y = Enum.map(-99..99, &(&1 / 100))
      back = Nx.tensor(y) |> Nx.erf_inv() |> Nx.erf() |> Nx.to_flat_list()
      for {got, y} <- Enum.zip(back, y), do: assert_in_delta(got, y, 1.0e-6)
      assert Nx.to_flat_list(Nx.erf_inv(Nx.tensor([1.0, -1.0, 0.0]))) == [:infinity, :neg_infinity, 0.0]
    end

    defp erfc_exact(x, {:f, 32}), do: :math.erfc(Nx.Shared.to_float32(x * 1.0))
    defp erfc_exact(x, _), do: :math.erfc(x)

    test "complex numbers" do
      z = [Complex.new(1.0, 2.0), Complex.new(-0.5, 0.25), Complex.new(0.0, -3.0), Complex.new(2.0, 0.0)]
      w = [Complex.new(0.5, -1.0), Complex.new(2.0, 1.0), Complex.new(1.0, 0.0), Complex.new(0.0, 1.5)]

      for type <- [{:c, 64}, {:c, 128}] do
        tolerance = if type == {:c, 64}, do: 1.0e-5, else: 1.0e-12
        {a, b} = {fn -> Nx.tensor(z, type: type) end, fn -> Nx.tensor(w, type: type) end}

        for name <- [:add, :subtract, :multiply, :divide, :pow],
            do: near(fn -> apply(Nx, name, [a.(), b.()]) end, tolerance)

        for name <-
              [:exp, :expm1, :log, :log1p, :sin, :cos, :tan, :sinh, :cosh, :tanh, :sqrt, :rsqrt, :sigmoid] ++
                [:negate, :conjugate, :abs, :real, :imag, :sum, :product] do
          near(fn -> apply(Nx, name, [a.()]) end, tolerance)
        end

        near(fn -> Nx.dot(a.(), b.()) end, tolerance)
        near(fn -> Nx.fft(Nx.add(a.(), b.())) end, tolerance)
        near(fn -> Nx.ifft(a.(), length: 6) end, tolerance)
        same(fn -> Nx.equal(a.(), Nx.tensor(Enum.reverse(Enum.reverse(z)), type: type)) end)
        same(fn -> Nx.select(Nx.tensor([1, 0, 1, 0]), a.(), b.()) end)
        same(fn -> a.() |> Nx.reshape({2, 2}) |> Nx.transpose() |> Nx.pad(0, [{1, 0, 0}, {0, 0, 1}]) end)
        same(fn -> Nx.put_slice(Nx.broadcast(a.(), {2, 4}), [1, 1], Nx.reshape(Nx.slice(b.(), [0], [2]), {1, 2})) end)
        same(fn -> Nx.take_along_axis(a.(), Nx.tensor([3, 0])) end)
      end
    end

    defp near(fun, tolerance) do
      ours = fun.()
      Nx.default_backend(Nx.BinaryBackend)
      theirs = fun.()
      Nx.default_backend(Olivine.Backend)
      assert {ours.type, ours.shape} == {theirs.type, theirs.shape}

      for {a, b} <- Enum.zip(Nx.to_flat_list(ours), Nx.to_flat_list(theirs)) do
        assert Complex.abs(Complex.subtract(a, b)) <= tolerance * max(1.0, Complex.abs(b)),
               "#{inspect(a)} is not #{inspect(b)}"
      end
    end

    test "strict mode refuses the host, and calls of it are counted" do
      complex = Nx.tensor([Complex.new(1.0, 2.0)])
      before = Map.get(Olivine.Backend.host_calls(), :acos, 0)
      Nx.acos(complex)
      assert Olivine.Backend.host_calls()[:acos] == before + 1
      Nx.default_backend({Olivine.Backend, strict: true})
      error = assert_raise Olivine.Error, fn -> Nx.acos(complex) end
      assert error.kind == :unsupported
      assert Nx.to_flat_list(Nx.add(Nx.tensor([1, 2]), 1)) == [2, 3]
    end

    test "tensors of other backends are taken along" do
      binary = Nx.tensor([1.0, 2.0], backend: Nx.BinaryBackend)
      assert Nx.to_flat_list(Nx.add(Nx.tensor([1.0, 1.0]), binary)) == [2.0, 3.0]
      assert %Nx.BinaryBackend{} = Nx.backend_transfer(Nx.tensor([1]), Nx.BinaryBackend).data
      assert %Olivine.Backend{} = Nx.backend_transfer(binary, Olivine.Backend).data
    end

    test "tensors print with the backend's name" do
      assert inspect(Nx.tensor([1, 2])) =~ "Olivine.Backend(#{Olivine.device()})"
    end

    test "a model takes and gives tensors" do
      path = Path.join(System.tmp_dir!(), "olivine-#{System.unique_integer([:positive])}.onnx")
      File.write!(path, Olivine.Test.Onnx.relu_bias())
      on_exit(fn -> File.rm(path) end)
      model = Olivine.Model.load!(path)
      assert %{"y" => y} = Olivine.Model.run!(model, %{"x" => Nx.tensor([[1.0, -2.0, 3.0]])})
      assert Nx.to_flat_list(y) == [11.0, 20.0, 33.0]
      serving = start_supervised!({Olivine.Serving, model: model, batch_timeout: 1})
      assert {:ok, %{"y" => y}} = Olivine.Serving.run(serving, %{"x" => Nx.tensor([[1.0, -2.0, 3.0]])})
      assert y.shape == {1, 3}
    end
  end
end
