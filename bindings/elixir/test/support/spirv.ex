defmodule Olivine.Test.Spirv do
  @moduledoc false
  # Writes a small compute module: out[i] = a[i] + b[i] for i < n, or a[i] * b[i] where specialisation constant 0 is 1.

  import Bitwise

  # Ids.
  @void 1
  @fun 2
  @bool 3
  @u32 4
  @f32 5
  @v3u 6
  @input 7
  @array 8
  @block 9
  @block_pointer 10
  @element_pointer 11
  @push 12
  @push_pointer 13
  @push_element 14
  @zero 15
  @one 16
  @op 17
  @gid 18
  @sizes 19
  @main 20
  @buffers [21, 22, 23]
  @next 24
  @bound 60

  @doc """
  The module's bytes. `:model` is the kind of its entry point, `:bindings` the numbers of its three buffers, and `:set`
  their descriptor set.
  """
  def elementwise(options \\ []) do
    # 5 is a compute shader.
    model = Keyword.get(options, :model, 5)
    bindings = Keyword.get(options, :bindings, [0, 1, 2])
    set = Keyword.get(options, :set, 0)

    [
      <<0x07230203::32-little, 0x00010300::32-little, 0::32, @bound::32-little, 0::32>>,
      i(17, [1]),
      i(14, [0, 1]),
      i(15, [model, @main | name("main")] ++ [@gid]),
      i(16, [@main, 17, 64, 1, 1]),
      i(71, [@gid, 11, 28]),
      i(71, [@array, 6, 4]),
      i(71, [@block, 2]),
      i(72, [@block, 0, 35, 0]),
      i(71, [@push, 2]),
      i(72, [@push, 0, 35, 0]),
      i(71, [@op, 1, 0]),
      for({id, binding} <- Enum.zip(@buffers, bindings), do: [i(71, [id, 34, set]), i(71, [id, 33, binding])]),
      i(19, [@void]),
      i(33, [@fun, @void]),
      i(20, [@bool]),
      i(21, [@u32, 32, 0]),
      i(22, [@f32, 32]),
      i(23, [@v3u, @u32, 3]),
      i(32, [@input, 1, @v3u]),
      i(29, [@array, @f32]),
      i(30, [@block, @array]),
      i(32, [@block_pointer, 12, @block]),
      i(32, [@element_pointer, 12, @f32]),
      i(30, [@push, @u32]),
      i(32, [@push_pointer, 9, @push]),
      i(32, [@push_element, 9, @u32]),
      i(43, [@u32, @zero, 0]),
      i(43, [@u32, @one, 1]),
      i(50, [@u32, @op, 0]),
      i(59, [@input, @gid, 1]),
      i(59, [@push_pointer, @sizes, 9]),
      for(id <- @buffers, do: i(59, [@block_pointer, id, 12])),
      body()
    ]
    |> IO.iodata_to_binary()
  end

  defp body do
    [a, b, out] = @buffers

    [start, id, x, p, n, inside, then, merge, pa, pb, po, va, vb, sum, product, multiplies, value] =
      Enum.to_list(@next..(@next + 16))

    [
      i(54, [@void, @main, 0, @fun]),
      i(248, [start]),
      i(61, [@v3u, id, @gid]),
      i(81, [@u32, x, id, 0]),
      i(65, [@push_element, p, @sizes, @zero]),
      i(61, [@u32, n, p]),
      i(176, [@bool, inside, x, n]),
      i(247, [merge, 0]),
      i(250, [inside, then, merge]),
      i(248, [then]),
      i(65, [@element_pointer, pa, a, @zero, x]),
      i(65, [@element_pointer, pb, b, @zero, x]),
      i(65, [@element_pointer, po, out, @zero, x]),
      i(61, [@f32, va, pa]),
      i(61, [@f32, vb, pb]),
      i(129, [@f32, sum, va, vb]),
      i(133, [@f32, product, va, vb]),
      i(170, [@bool, multiplies, @op, @one]),
      i(169, [@f32, value, multiplies, product, sum]),
      i(62, [po, value]),
      i(249, [merge]),
      i(248, [merge]),
      i(253, []),
      i(56, [])
    ]
  end

  # An instruction: its length in words, its number and its operands.
  defp i(opcode, operands) do
    for word <- [(length(operands) + 1) <<< 16 ||| opcode | operands], into: <<>>, do: <<word::32-little>>
  end

  # A string ends with a zero byte and fills whole words.
  defp name(text) do
    padded = text <> :binary.copy(<<0>>, 4 - rem(byte_size(text), 4))
    for <<word::32-little <- padded>>, do: word
  end
end
