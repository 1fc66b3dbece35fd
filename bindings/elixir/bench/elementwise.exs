# Ten elementwise operations of Nx on 16 M numbers against one: both are one dispatch that reads and writes each once.
#
#     mix run bench/elementwise.exs

Nx.default_backend(Olivine.Backend)
count = 16 * 1024 * 1024
x = Nx.iota({count}, type: :f32) |> Nx.divide(count)

ten = fn ->
  x
  |> Nx.multiply(2.0)
  |> Nx.add(1.0)
  |> Nx.abs()
  |> Nx.max(0.5)
  |> Nx.subtract(0.25)
  |> Nx.multiply(x)
  |> Nx.add(x)
  |> Nx.negate()
  |> Nx.min(3.0)
  |> Nx.divide(1.5)
end

one = fn -> Nx.add(x, x) end

time = fn work ->
  run = fn -> Olivine.Array.wait(work.().data.array) end
  run.()

  for(_ <- 1..20, do: elem(:timer.tc(run), 0)) |> Enum.sort() |> Enum.at(10)
end

Olivine.Array.wait(x.data.array)
{ten, one} = {time.(ten), time.(one)}
IO.puts("#{Olivine.device()}: ten operations #{ten / 1000} ms, one #{one / 1000} ms, #{Float.round(ten / one, 2)} times")
