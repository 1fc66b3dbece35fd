# Nx's own doctests on Olivine.Backend:
#
#     MIX_ENV=test mix run test/nx_doctests.exs
#
# Prints how many pass, and how many of those without the host. Fails if one fails that test/nx_doctests_expected.exs does
# not list; the list is for Nx 0.9.2. `OLIVINE_SHOW=1` shows the failures.

unless Code.ensure_loaded?(Olivine.Backend) do
  Mix.raise("Nx is not there: these are its doctests")
end

{:ok, _} = Application.ensure_all_started(:nx)
Application.put_env(:olivine, :add_backend_on_inspect, false)
Nx.global_default_backend(Olivine.Backend)

defmodule Olivine.NxDoctests do
  @moduledoc false
  # Collects what each test did.
  use GenServer

  def init(_options), do: {:ok, %{}}

  def handle_cast({:test_finished, %ExUnit.Test{name: name, state: state}}, results) do
    Agent.update(__MODULE__, &Map.update(&1, name, %{state: state}, fn result -> Map.put(result, :state, state) end))
    {:noreply, results}
  end

  def handle_cast(_event, results), do: {:noreply, results}

  defmacro doctests(module) do
    quote do
      use ExUnit.Case, async: false

      setup context do
        before = Olivine.Backend.host_calls()

        on_exit(fn ->
          if Olivine.Backend.host_calls() != before do
            Agent.update(Olivine.NxDoctests, fn all ->
              Map.update(all, context.test, %{host: true}, &Map.put(&1, :host, true))
            end)
          end
        end)
      end

      doctest unquote(module)
    end
  end
end

{:ok, _} = Agent.start_link(fn -> %{} end, name: Olivine.NxDoctests)
ExUnit.start(autorun: false, formatters: [Olivine.NxDoctests], timeout: 300_000)

defmodule Olivine.NxDoctests.Nx do
  require Olivine.NxDoctests
  Olivine.NxDoctests.doctests(Nx)
end

defmodule Olivine.NxDoctests.LinAlg do
  require Olivine.NxDoctests
  Olivine.NxDoctests.doctests(Nx.LinAlg)
end

ExUnit.run()

results = Agent.get(Olivine.NxDoctests, & &1)
{failed, passed} = Enum.split_with(results, fn {_, result} -> result.state != nil end)
failed = Map.new(failed, fn {name, result} -> {String.replace_prefix("#{name}", "doctest ", ""), result.state} end)
native = Enum.count(passed, fn {_, result} -> not Map.has_key?(result, :host) end)
on_host = for {name, %{host: true}} <- passed, do: String.replace_prefix("#{name}", "doctest ", "")
total = map_size(results)
percent = fn count -> Float.round(100 * count / total, 1) end

if System.get_env("OLIVINE_SHOW") do
  for {name, {:failed, failures}} <- Enum.sort(failed), {kind, error, stack} <- failures do
    IO.puts("\n--- #{name}\n#{Exception.format(kind, error, Enum.take(stack, 4)) |> String.slice(0, 3000)}")
    with %{left: left, right: right} <- error, do: IO.puts("got      #{inspect(left)}\nexpected #{inspect(right)}")
  end

  IO.puts("\non the host: #{Enum.join(Enum.sort(on_host), ", ")}\n#{inspect(Olivine.Backend.host_calls())}")
end

IO.puts("device #{Olivine.device()}: #{total} doctests of Nx and Nx.LinAlg")
IO.puts("  pass                    #{length(passed)} (#{percent.(length(passed))} %)")
IO.puts("  pass without the host   #{native} (#{percent.(native)} %)")

{expected, _} = Code.eval_file(Path.join(__DIR__, "nx_doctests_expected.exs"))
device = Olivine.device() |> String.split(":") |> hd() |> String.to_atom()
expected = Map.merge(expected.all, Map.get(expected, device, %{}))
new = Enum.sort(Map.keys(failed) -- Map.keys(expected))
gone = Enum.sort(Map.keys(expected) -- Map.keys(failed))
# Another processor or driver rounds other last digits.
if gone != [], do: IO.puts("pass here, though they are listed: #{Enum.join(gone, ", ")}")

if new != [] do
  IO.puts("fail, but are not listed:\n  #{Enum.join(new, "\n  ")}")
  System.halt(1)
end
