# A device that cannot be opened would fail every test with its own words; say it once.
with {:error, error} <- Olivine.open() do
  Mix.raise("the tests need the device #{Olivine.device()}: #{Exception.message(error)}")
end

# Modules of SPIR-V run on Vulkan alone.
exclude = if String.starts_with?(Olivine.device(), "vulkan"), do: [:not_vulkan], else: [:vulkan]
ExUnit.start(exclude: exclude, capture_log: true)
