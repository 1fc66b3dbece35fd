defmodule Olivine.Error do
  @moduledoc """
  What Olivine refused or a device failed at.

  `kind` is stable: `:size_mismatch`, `:bad_input`, `:spv_read_failed`, `:dispatch_failed`, `:out_of_memory`,
  `:unsupported`, `:device_lost` or `:unavailable`. The message has the facts.
  """
  defexception [:kind, :message]

  @type t :: %__MODULE__{kind: atom, message: String.t()}

  @doc "The exception of an error that a function returned."
  @spec new({:error, atom} | {:error, atom, String.t()}) :: t
  def new({:error, kind}), do: %__MODULE__{kind: kind, message: "#{kind}"}
  def new({:error, kind, message}), do: %__MODULE__{kind: kind, message: message}
end
