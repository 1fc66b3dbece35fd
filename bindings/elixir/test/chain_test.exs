defmodule Olivine.ChainTest do
  # Leapfrog chains: the dispatch contract with every error, and densities in Olivine's language.
  use ExUnit.Case, async: true

  import Olivine.Test.Numbers
  alias Olivine.NativeV, as: V

  @normal "sum_coord(-0.5 * q^2 - 0.5 * log(2 * pi))"

  defp up(binary) do
    {:ok, buffer} = V.buf_upload(binary)
    buffer
  end

  defp down({:ok, buffers}, from),
    do: buffers |> Tuple.to_list() |> Enum.map(&(V.buf_download(&1) |> elem(1) |> from.()))

  defp push(k, n_obs, d, eps, 4), do: <<k::32-little, n_obs::32-little, d::32-little, 0::32, eps::32-float-little>>
  defp push(k, n_obs, d, eps, 8), do: <<k::32-little, n_obs::32-little, d::32-little, 0::32, eps::64-float-little>>

  # A standard normal on the host, in f64.
  defp leapfrog(q, p, inverse_mass, eps, steps) do
    Enum.map_reduce(1..steps, {q, p}, fn _, {q, p} ->
      half = Enum.zip_with(p, q, fn p, q -> p - eps / 2 * q end)
      q = Enum.zip_with([q, half, inverse_mass], fn [q, p, m] -> q + eps * m * p end)
      p = Enum.zip_with(half, q, fn p, q -> p - eps / 2 * q end)
      {{q, p}, {q, p}}
    end)
    |> elem(0)
  end

  defp close(got, expected, tolerance) do
    assert length(got) == length(expected)
    worst = Enum.zip_with(got, expected, fn a, b -> abs(a - b) / max(1.0, abs(b)) end) |> Enum.max()
    assert worst <= tolerance, "off by #{worst}"
  end

  # A module of the contract where there is Vulkan, the same density as text, and the built-in one.
  defp kernels(type) do
    module =
      if String.starts_with?(Olivine.device(), "vulkan"), do: [elem(Olivine.Chain.spirv(@normal, type), 1)], else: []

    [:builtin, {:builtin, type}, {:density, @normal}] ++ module
  end

  test "a standard normal with known numbers" do
    for kernel <- kernels(:f64) do
      result = V.leapfrog_chain_synth(up(f64([0.3])), up(f64([1.0])), up(f64([1.0])), push(1, 0, 1, 0.05, 8), 1, kernel)
      [[q], [p], [gradient], [logp]] = down(result, &from_f64/1)
      assert_in_delta q, 0.349625, 1.0e-14
      assert_in_delta logp, -0.980057353517, 1.0e-12
      assert_in_delta gradient, -0.349625, 1.0e-14
      assert_in_delta p, 1.0 - 0.025 * 0.3 - 0.025 * 0.349625, 1.0e-14
    end
  end

  test "many coordinates, more than a workgroup and more than one of its passes has" do
    for d <- [1, 8, 257, 4096],
        {type, size, write, read, tolerance} <- [
          {:f64, 8, &f64/1, &from_f64/1, 1.0e-13},
          {:f32, 4, &f32/1, &from_f32/1, 1.0e-5}
        ] do
      steps = 5
      q = Enum.map(1..d, &(:math.sin(&1) * 1.0))
      p = Enum.map(1..d, &:math.cos(&1 * 0.7))
      mass = Enum.map(1..d, &(0.5 + rem(&1, 3)))
      expected = leapfrog(q, p, mass, 0.05, steps)

      for kernel <- kernels(type) do
        result =
          V.leapfrog_chain_synth(
            up(write.(q)),
            up(write.(p)),
            up(write.(mass)),
            push(steps, 0, d, 0.05, size),
            steps,
            kernel
          )

        [q_chain, p_chain, gradient, logp] = down(result, read)
        close(q_chain, Enum.flat_map(expected, &elem(&1, 0)), tolerance)
        close(p_chain, Enum.flat_map(expected, &elem(&1, 1)), tolerance)
        close(gradient, Enum.flat_map(expected, fn {q, _} -> Enum.map(q, &(-&1)) end), tolerance)
        constant = 0.5 * :math.log(2 * :math.pi())

        close(
          logp,
          Enum.map(expected, fn {q, _} -> Enum.sum(Enum.map(q, &(-0.5 * &1 * &1 - constant))) end),
          tolerance * 10
        )
      end
    end
  end

  test "observations come before the inverse masses" do
    density = "sum_obs(-0.5 * (y - q[0])^2) - 0.5 * q[0]^2"
    obs = [1.0, 2.0, 4.5]
    extras = up(f64(obs ++ [2.0]))

    result =
      V.leapfrog_chain_synth(up(f64([0.0])), up(f64([0.0])), extras, push(1, 3, 1, 0.1, 8), 1, {:density, density})

    [[q], _, [gradient], [logp]] = down(result, &from_f64/1)
    assert_in_delta q, 0.1 * 2.0 * 0.05 * 7.5, 1.0e-14
    assert_in_delta gradient, 7.5 - 4 * q, 1.0e-13
    assert_in_delta logp, Enum.sum(Enum.map(obs, &(-0.5 * (&1 - q) ** 2))) - 0.5 * q * q, 1.0e-13
  end

  describe "the contract" do
    setup do
      %{q: up(f32([0.1, 0.2])), p: up(f32([1.0, 1.0])), extras: up(f32([1.0, 1.0]))}
    end

    test "k is that of the push constants", %{q: q, p: p, extras: extras} do
      good = push(3, 0, 2, 0.1, 4)
      assert {:ok, _} = V.leapfrog_chain_synth(q, p, extras, good, 3, :builtin)

      for k <- [0, 2, 4, -1, 2 ** 32, 2 ** 70] do
        assert {:error, :bad_input, message} = V.leapfrog_chain_synth(q, p, extras, good, k, :builtin)
        assert message != ""
      end

      for k <- [3.0, :three, nil],
          do: assert_raise(ArgumentError, fn -> V.leapfrog_chain_synth(q, p, extras, good, k, :builtin) end)
    end

    test "push constants have 20 to 128 bytes, and what follows ε is passed on", %{q: q, p: p, extras: extras} do
      good = push(3, 0, 2, 0.1, 4)

      for extra <- [4, 44, 108],
          do: assert({:ok, _} = V.leapfrog_chain_synth(q, p, extras, good <> :binary.copy(<<7>>, extra), 3, :builtin))

      for bad <- ["", binary_part(good, 0, 19), good <> :binary.copy(<<0>>, 109), :binary.copy(<<0>>, 500)] do
        assert {:error, :bad_input, message} = V.leapfrog_chain_synth(q, p, extras, bad, 3, :builtin)
        assert message =~ "#{byte_size(bad)}"
      end

      for bad <- [nil, :push, 1, [1 | 2]],
          do: assert_raise(ArgumentError, fn -> V.leapfrog_chain_synth(q, p, extras, bad, 3, :builtin) end)
    end

    test "an f64 ε has eight bytes" do
      two = up(f64([1.0, 1.0]))
      assert {:error, :bad_input, _} = V.leapfrog_chain_synth(two, two, two, push(3, 0, 2, 0.1, 4), 3, :builtin)
      assert {:ok, _} = V.leapfrog_chain_synth(two, two, two, push(3, 0, 2, 0.1, 8), 3, :builtin)
    end

    test "lengths are those that d and n_obs say", %{q: q, p: p, extras: extras} do
      one = up(f32([1.0]))
      three = up(f32([1.0, 1.0, 1.0]))
      empty = up("")
      good = push(3, 0, 2, 0.1, 4)

      for bad <- [one, three, empty] do
        assert V.leapfrog_chain_synth(bad, p, extras, good, 3, :builtin) == {:error, :size_mismatch}
        assert V.leapfrog_chain_synth(q, bad, extras, good, 3, :builtin) == {:error, :size_mismatch}
        assert V.leapfrog_chain_synth(q, p, bad, good, 3, :builtin) == {:error, :size_mismatch}
      end

      # Observations that are not there.
      assert V.leapfrog_chain_synth(q, p, extras, push(3, 5, 2, 0.1, 4), 3, :builtin) == {:error, :size_mismatch}

      assert V.leapfrog_chain_synth(q, p, extras, push(3, 2 ** 32 - 1, 2, 0.1, 4), 3, :builtin) ==
               {:error, :size_mismatch}

      assert V.leapfrog_chain_synth(q, p, extras, push(3, 0, 3, 0.1, 4), 3, :builtin) == {:error, :size_mismatch}
      assert {:error, :bad_input, _} = V.leapfrog_chain_synth(empty, empty, empty, push(3, 0, 0, 0.1, 4), 3, :builtin)
    end

    test "a chain of nothing and one of too much", %{q: q, p: p, extras: extras} do
      case V.leapfrog_chain_synth(q, p, extras, push(0, 0, 2, 0.1, 4), 0, :builtin) do
        {:ok, _} = result -> assert down(result, & &1) == ["", "", "", ""]
        {:error, :bad_input, _} -> :ok
      end

      assert {:error, kind, _} = V.leapfrog_chain_synth(q, p, extras, push(2 ** 31, 0, 2, 0.1, 4), 2 ** 31, :builtin)
      assert kind in [:bad_input, :out_of_memory]
    end

    test "densities and modules that are none", %{q: q, p: p, extras: extras} do
      good = push(3, 0, 2, 0.1, 4)
      run = fn kernel -> V.leapfrog_chain_synth(q, p, extras, good, 3, kernel) end

      for text <- ["", "sum_coord(", "no_such_thing", "q", "sum_obs(y - x)"],
          do: assert({:error, :bad_input, _} = run.({:density, text}))

      assert {:error, :bad_input, _} = run.({:builtin, :s32})
      assert {:error, :spv_read_failed, _} = run.("/no/such/file.spv")
      assert {:error, :bad_input, _} = run.(<<0x07230203::32-little, 1, 2, 3, 4>>)
      assert {:error, :bad_input, _} = run.(Olivine.Test.Spirv.elementwise())

      for bad <- [make_ref()],
          do: assert({:error, :bad_input, _} = V.leapfrog_chain_synth(bad, p, extras, good, 3, :builtin))
    end
  end

  describe "Olivine.Chain" do
    test "runs densities with data, alone and in batches" do
      density = "column x; sum_obs(-0.5 * (y - q[0] - q[1] * x)^2) + sum_coord(-0.5 * q^2)"
      chain = Olivine.Chain.bind!(density, 2, observations: [1.0, 2.0, 3.5], data: %{x: [0.0, 1.0, 2.0]})
      options = [steps: 4, step_size: 0.01, inverse_mass: [1.0, 0.5]]
      one = Olivine.Chain.run!(chain, [0.1, 0.2], [1.0, -1.0], options)
      assert length(one.q) == 4 and length(one.density) == 4
      [a, b] = List.last(one.q)

      expected =
        Enum.zip_with([1.0, 2.0, 3.5], [0.0, 1.0, 2.0], fn y, x -> -0.5 * (y - a - b * x) ** 2 end) |> Enum.sum()

      assert_in_delta List.last(one.density), expected - 0.5 * (a * a + b * b), 1.0e-12

      assert {:ok, [^one, other]} =
               Olivine.Chain.run_batch(chain, [[0.1, 0.2], [0.3, 0.4]], [[1.0, -1.0], [0.0, 0.0]], options)

      assert other != one
    end

    test "a chain backwards returns to its beginning" do
      chain = Olivine.Chain.bind!(@normal, 1)
      there = Olivine.Chain.run!(chain, [0.3], [1.0], steps: 50, step_size: 0.05)
      [p] = List.last(there.p)
      back = Olivine.Chain.run!(chain, List.last(there.q), [-p], steps: 50, step_size: 0.05)
      assert_in_delta hd(List.last(back.q)), 0.3, 1.0e-12
    end

    test "what is wrong is an error" do
      assert {:error, %Olivine.Error{}} = Olivine.Chain.bind("nonsense(", 1)
      assert {:error, %Olivine.Error{}} = Olivine.Chain.bind("q[5]", 2)
      assert {:error, %Olivine.Error{}} = Olivine.Chain.bind("column x; sum_obs(x * y)", 1, observations: [1.0])
      chain = Olivine.Chain.bind!(@normal, 2)
      assert {:error, %Olivine.Error{}} = Olivine.Chain.run(chain, [1.0], [1.0], steps: 1, step_size: 0.1)
      assert {:error, %Olivine.Error{}} = Olivine.Chain.spirv(@normal, :i32)
    end
  end
end
