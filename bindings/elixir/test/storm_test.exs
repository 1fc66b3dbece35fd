defmodule Olivine.StormTest do
  # Many processes, many handles, and garbage collection at any time.
  use ExUnit.Case, async: false

  import Olivine.Test.Numbers
  alias Olivine.NativeV, as: V

  # A machine that is busy with other things takes long to switch between a hundred processes and a driver's threads.
  @moduletag timeout: 900_000

  test "100 processes work on handles of their own, dropped while work is in flight" do
    1..100
    |> Task.async_stream(
      fn i ->
        numbers = Enum.map(1..500, &((&1 + i) * 1.0))

        for round <- 1..10 do
          {:ok, a} = V.buf_upload(f32(numbers))
          {:ok, out} = V.buf_alloc(2000)
          :ok = V.apply_binary(out, a, a, 500, 0, :builtin)
          :ok = V.apply_unary(out, out, 500, 12, :builtin)

          # Most handles go while the device still works on them.
          if rem(round, 5) == 0 do
            {:ok, result} = V.buf_download(out)
            assert from_f32(result) == Enum.map(numbers, &(4 * &1 * &1))
          else
            :erlang.garbage_collect()
          end
        end
      end,
      max_concurrency: 100,
      timeout: :infinity,
      ordered: false
    )
    |> Enum.each(fn {:ok, _} -> :ok end)
  end

  test "processes that are killed leave nothing behind that breaks others" do
    {:ok, shared} = V.buf_upload(f32(List.duplicate(1.0, 1000)))

    for _ <- 1..100 do
      pid =
        spawn(fn ->
          {:ok, out} = V.buf_alloc(4000)
          for _ <- 1..1000, do: V.apply_binary(out, shared, shared, 1000, 0, :builtin)
        end)

      Process.sleep(1)
      Process.exit(pid, :kill)
    end

    {:ok, out} = V.buf_alloc(4000)
    assert V.apply_binary(out, shared, shared, 1000, 0, :builtin) == :ok
    {:ok, result} = V.buf_download(out)
    assert from_f32(result) == List.duplicate(2.0, 1000)
  end

  test "processes that write to one buffer leave the result of one of them" do
    {:ok, shared} = V.buf_alloc(4000)
    operands = for i <- 1..8, do: elem(V.buf_upload(f32(List.duplicate(i * 1.0, 1000))), 1)

    operands
    |> Task.async_stream(
      fn operand -> for _ <- 1..50, do: :ok = V.apply_binary(shared, operand, operand, 1000, 0, :builtin) end,
      timeout: :infinity
    )
    |> Stream.run()

    {:ok, result} = V.buf_download(shared)
    assert [number] = result |> from_f32() |> Enum.uniq()
    assert number in Enum.map(1..8, &(&1 * 2.0))
  end

  test "5,000 dispatches take no more memory than 500" do
    {:ok, a} = V.buf_upload(f32(List.duplicate(1.5, 4096)))
    {:ok, out} = V.buf_alloc(4 * 4096)

    work = fn count ->
      for i <- 1..count do
        :ok = V.apply_binary(out, a, a, 4096, 1, :builtin)
        # A handle that nobody holds, now and then.
        if rem(i, 10) == 0, do: {:ok, _} = V.buf_alloc(4 * 4096)
      end

      {:ok, _} = V.buf_download(out)
      settled()
    end

    work.(500)
    before = taken()
    work.(5000)
    # Each dispatch writes a buffer of 16 KiB: 80 MiB if they stayed.
    assert taken() - before < 16 * 1024 * 1024
  end

  # Bytes of the operating system's process, and of the device where it is not the processor.
  defp taken do
    [_, pages | _] = "/proc/self/statm" |> File.read!() |> String.split()
    String.to_integer(pages) * 4096 + (Olivine.memory_taken() || 0)
  end

  # The thread that frees handles is a little behind.
  defp settled do
    Process.sleep(300)
    :erlang.garbage_collect()
    Process.sleep(300)
  end

  test "calls that wait do not hold up schedulers" do
    size = 384
    {:ok, a} = V.buf_upload(f32(List.duplicate(0.5, size * size)))
    {:ok, out} = V.buf_alloc(4 * size * size)
    stop = make_ref()

    # As many as would fill every scheduler.
    busy =
      for _ <- 1..(2 * System.schedulers_online()) do
        Task.async(fn ->
          Stream.repeatedly(fn ->
            :ok = V.matmul(out, a, a, size, size, size, :builtin)
            {:ok, _} = V.buf_download(out)

            receive do
              ^stop -> :stop
            after
              0 -> :go
            end
          end)
          |> Enum.find(&(&1 == :stop))
        end)
      end

    slowest =
      for _ <- 1..100 do
        Process.sleep(5)
        start = System.monotonic_time(:microsecond)
        Task.async(fn -> {:ok, _} = V.buf_byte_size(a) end) |> Task.await()
        System.monotonic_time(:microsecond) - start
      end
      |> Enum.sort()
      |> Enum.at(90)

    for task <- busy, do: send(task.pid, stop)
    Task.await_many(busy, :infinity)
    # A scheduler that waits for a device is away for as long as the matmuls of all processes take.
    assert slowest < 50_000, "the tenth slowest message took #{slowest} µs"
  end
end
