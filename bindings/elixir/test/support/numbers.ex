defmodule Olivine.Test.Numbers do
  @moduledoc false
  # Lists of numbers as packed binaries, and back.

  def f32(numbers), do: for(x <- numbers, into: <<>>, do: <<x::32-float-native>>)
  def f64(numbers), do: for(x <- numbers, into: <<>>, do: <<x::64-float-native>>)
  def s32(numbers), do: for(x <- numbers, into: <<>>, do: <<x::32-signed-native>>)

  def from_f32(binary), do: for(<<x::32-float-native <- binary>>, do: x)
  def from_f64(binary), do: for(<<x::64-float-native <- binary>>, do: x)
  def from_s32(binary), do: for(<<x::32-signed-native <- binary>>, do: x)
end
