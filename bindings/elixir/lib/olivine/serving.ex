defmodule Olivine.Serving do
  @moduledoc """
  A process that runs a model for many callers, in batches.

      children = [{Olivine.Serving, name: MyModel, model: "model.onnx", batch_size: 16, batch_timeout: 20}]

      {:ok, %{"y" => y}} = Olivine.Serving.run(MyModel, %{"x" => {:f32, {1, 4}, binary}})

  Requests that are waiting are joined along axis 0, run at once, and cut again: each caller gets the rows of its own.
  A batch runs as soon as it has `:batch_size` rows, or when its oldest request has waited for `:batch_timeout`; while one
  runs, the next is collected. Requests are joined if their inputs have the same names, dtypes and other sizes. Inputs and
  results are those of `Olivine.Model`.

  A model whose first size is fixed gets batches of that size, filled up with zeros.

  What goes wrong with a batch is the result of its callers; the process lives on.

  ## Options

    * `:model` – a path or a model of `Olivine.Model`; required
    * `:batch_size` – rows of a batch, 8 unless given
    * `:batch_timeout` – milliseconds, 100 unless given
    * `:name` and others of `GenServer.start_link/3`
  """
  use GenServer

  alias Olivine.{Error, Model, Native}

  @type option :: {:model, Path.t() | Model.t()} | {:batch_size, pos_integer} | {:batch_timeout, non_neg_integer}

  @doc "Starts the process; an error of the model is that of the start."
  @spec start_link([option | GenServer.option()]) :: GenServer.on_start()
  def start_link(options) do
    {own, server} = Keyword.split(options, [:model, :batch_size, :batch_timeout])
    GenServer.start_link(__MODULE__, own, server)
  end

  @doc "Runs a request with others: a map of the model's outputs by name."
  @spec run(GenServer.server(), %{String.t() => Model.value()}, timeout) ::
          {:ok, %{String.t() => Model.value()}} | {:error, Error.t()}
  def run(serving, inputs, timeout \\ :infinity) do
    GenServer.call(serving, {:run, inputs}, timeout)
  end

  @impl true
  def init(options) do
    size = Keyword.get(options, :batch_size, 8)
    timeout = Keyword.get(options, :batch_timeout, 100)

    cond do
      not (is_integer(size) and size > 0) -> {:stop, {:bad_batch_size, size}}
      not (is_integer(timeout) and timeout >= 0) -> {:stop, {:bad_batch_timeout, timeout}}
      true -> start(Keyword.fetch!(options, :model), size, timeout)
    end
  end

  defp start(%Model{} = model, size, timeout) do
    fixed = fixed_size(model)
    {:ok, %{model: model, size: fixed || size, fixed: fixed, timeout: timeout, waiting: %{}, running: nil}}
  end

  defp start(path, size, timeout) do
    case Model.load(path) do
      {:ok, model} -> start(model, size, timeout)
      {:error, error} -> {:stop, error}
    end
  end

  # The rows that the model's file fixes, if it does.
  defp fixed_size(model) do
    Enum.find_value(model.inputs, fn
      {_, _, [size | _]} when is_integer(size) -> size
      _ -> nil
    end)
  end

  @impl true
  def handle_call({:run, inputs}, from, state) do
    case request(state, inputs, from) do
      {:ok, key, request} -> {:noreply, state |> add(key, request) |> dispatch()}
      {:error, error} -> {:reply, {:error, error}, state}
    end
  end

  @impl true
  def handle_info({:timeout, key, timer}, state) do
    case state.waiting do
      %{^key => %{timer: ^timer} = group} ->
        {:noreply, dispatch(put_in(state.waiting[key], %{group | due: true}))}

      # The batch ran before its time.
      _ ->
        {:noreply, state}
    end
  end

  def handle_info({:DOWN, monitor, :process, _, reason}, %{running: {monitor, requests}} = state) do
    # The task replies to every caller before it ends.
    if reason != :normal do
      error = Error.new({:error, :dispatch_failed, "the batch ended with #{inspect(reason)}"})
      for request <- requests, do: GenServer.reply(request.from, {:error, error})
    end

    {:noreply, dispatch(%{state | running: nil})}
  end

  def handle_info(_message, state), do: {:noreply, state}

  # What a request is joined by, and its rows.
  defp request(state, inputs, from) do
    values =
      inputs |> Enum.map(fn {name, value} -> Model.to_native(state.model, to_string(name), value) end) |> Enum.sort()

    tensors = values != [] and Enum.all?(inputs, fn {_, value} -> Model.tensor?(value) end)

    case values |> Enum.map(fn {_, _, shape, _} -> List.first(shape) end) |> Enum.uniq() do
      [rows] when is_integer(rows) and rows > 0 ->
        key = Enum.map(values, fn {name, dtype, [_ | sizes], _} -> {name, dtype, sizes} end)
        {:ok, key, %{from: from, rows: rows, values: values, tensors: tensors}}

      sizes ->
        {:error, bad("a request has one number of rows, at least 1, along axis 0 of all inputs; got #{inspect(sizes)}")}
    end
  rescue
    error in [ArgumentError, FunctionClauseError, Protocol.UndefinedError] -> {:error, bad(Exception.message(error))}
  end

  defp bad(message), do: Error.new({:error, :bad_input, message})

  defp add(state, key, request) do
    group =
      Map.get_lazy(state.waiting, key, fn ->
        timer = make_ref()
        Process.send_after(self(), {:timeout, key, timer}, state.timeout)
        %{timer: timer, due: false, requests: :queue.new(), rows: 0}
      end)

    group = %{group | requests: :queue.in(request, group.requests), rows: group.rows + request.rows}
    put_in(state.waiting[key], group)
  end

  defp dispatch(%{running: running} = state) when running != nil, do: state

  defp dispatch(state) do
    case Enum.find(state.waiting, fn {_, group} -> group.due or group.rows >= state.size end) do
      nil ->
        state

      {key, group} ->
        {requests, group} = take(group, state.size)

        waiting =
          if :queue.is_empty(group.requests),
            do: Map.delete(state.waiting, key),
            else: Map.put(state.waiting, key, group)

        {model, fixed} = {state.model, state.fixed}
        {_, monitor} = spawn_monitor(fn -> run_batch(model, fixed, requests) end)
        %{state | waiting: waiting, running: {monitor, requests}}
    end
  end

  # Requests up to a batch's size, the first in any case. What stays behind is not late again before its own time.
  defp take(group, size) do
    {{:value, first}, rest} = :queue.out(group.requests)
    take([first], first.rows, rest, group, size)
  end

  defp take(taken, rows, rest, group, size) do
    case :queue.peek(rest) do
      {:value, next} when rows + next.rows <= size ->
        take([next | taken], rows + next.rows, :queue.drop(rest), group, size)

      _ ->
        {Enum.reverse(taken), %{group | requests: rest, rows: group.rows - rows}}
    end
  end

  defp run_batch(model, fixed, requests) do
    rows = requests |> Enum.map(& &1.rows) |> Enum.sum()

    case Native.model_run(model.ref, joined(requests, rows, fixed)) do
      {:ok, outputs} -> reply_parts(requests, outputs, max(rows, fixed || 0))
      error -> for request <- requests, do: GenServer.reply(request.from, {:error, Error.new(error)})
    end
  end

  defp joined([%{values: values} | _] = requests, rows, fixed) do
    values
    |> Enum.with_index()
    |> Enum.map(fn {{name, dtype, [_ | sizes], _}, i} ->
      parts = Enum.map(requests, fn request -> request.values |> Enum.at(i) |> elem(3) end)
      filled = max(rows, fixed || 0)
      row = div(IO.iodata_length(parts), rows)
      {name, dtype, [filled | sizes], IO.iodata_to_binary([parts, <<0::size((filled - rows) * row * 8)>>])}
    end)
  end

  defp reply_parts([request], outputs, total) when request.rows == total do
    GenServer.reply(request.from, {:ok, Map.new(outputs, &Model.from_native(&1, request.tensors))})
  end

  defp reply_parts(requests, outputs, total) do
    case Enum.find(outputs, fn {_, _, shape, _} -> List.first(shape) != total end) do
      nil ->
        Enum.reduce(requests, 0, fn request, start ->
          parts = Map.new(outputs, &(&1 |> part(start, request.rows, total) |> Model.from_native(request.tensors)))
          GenServer.reply(request.from, {:ok, parts})
          start + request.rows
        end)

      {name, _, shape, _} ->
        error =
          bad(
            "output #{name} has sizes #{inspect(shape)}: its first axis is not that of the batch of #{total}; use batch_size: 1"
          )

        for request <- requests, do: GenServer.reply(request.from, {:error, error})
    end
  end

  defp part({name, dtype, [_ | sizes], binary}, start, rows, total) do
    row = div(byte_size(binary), total)
    {name, dtype, [rows | sizes], binary_part(binary, start * row, rows * row)}
  end
end
