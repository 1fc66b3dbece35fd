defmodule Olivine do
  @moduledoc """
  Olivine from Elixir: device buffers, lazy arrays, ONNX models and leapfrog chains on CPUs and GPUs.

    * `Olivine.Backend` – a backend for Nx, compiled where Nx is there
    * `Olivine.Model`, `Olivine.Serving` – ONNX models, one by one or in batches
    * `Olivine.NativeV` – device buffers and immediate operations by op code
    * `Olivine.Chain` – chains of leapfrog steps of a log-density, one dispatch each
    * `Olivine.Array` – lazy arrays, what the backend is made of

  ## The device

  All of them run on one device. It is the environment variable `OLIVINE_DEVICE`, or else

      config :olivine, device: "vulkan"

  or else the best one there is. Names are those of the command line: `"cpu"`, `"vulkan"`, `"vulkan:1"`, `"wgpu"`;
  `devices/0` lists them. A device is opened by the first call that needs it and stays open.
  """

  alias Olivine.{Error, Native}

  @doc "The name of the device that calls use: `\"auto\"` unless one is configured."
  @spec device :: String.t()
  def device do
    with nil <- :persistent_term.get({__MODULE__, :device}, nil) do
      device = System.get_env("OLIVINE_DEVICE") || Application.get_env(:olivine, :device, "auto")
      device = to_string(device)
      :persistent_term.put({__MODULE__, :device}, device)
      device
    end
  end

  @doc "Opens the device now instead of with the first call that needs it."
  @spec open :: :ok | {:error, Error.t()}
  def open do
    with nil <- :persistent_term.get({__MODULE__, :opened}, nil) do
      case Native.open(device()) do
        :ok -> :persistent_term.put({__MODULE__, :opened}, :ok)
        error -> {:error, Error.new(error)}
      end
    end
  end

  @doc "What can run here: the name of each device and a description."
  @spec devices :: [{String.t(), String.t()}]
  def devices, do: Native.devices()

  @doc "Bytes of the device's memory that are taken, or `nil` where that is not known."
  @spec memory_taken :: non_neg_integer | nil
  def memory_taken, do: Native.memory(device())
end
