defmodule Olivine.MixProject do
  use Mix.Project

  def project do
    [
      app: :olivine,
      version: "0.1.0",
      elixir: "~> 1.14",
      description: "Device arrays, ONNX models and leapfrog chains on CPUs and GPUs, with a backend for Nx",
      compilers: [:olivine_nif] ++ Mix.compilers(),
      elixirc_paths: if(Mix.env() == :test, do: ["lib", "test/support"], else: ["lib"]),
      start_permanent: Mix.env() == :prod,
      deps: deps(),
      package: package()
    ]
  end

  def application do
    # Nx may be there without Hex as well, by `ERL_LIBS`.
    [extra_applications: [:logger, nx: :optional]]
  end

  # Hex is needed to fetch Nx and nothing else: without it, as on a plain Debian, everything but the backend compiles.
  defp deps do
    if Code.ensure_loaded?(Hex), do: [{:nx, "~> 0.9", optional: true}], else: []
  end

  defp package do
    [
      licenses: ["MIT", "Apache-2.0"],
      links: %{"GitHub" => "https://github.com/olivine-ml/olivine"}
    ]
  end
end

defmodule Mix.Tasks.Compile.OlivineNif do
  @moduledoc "Builds the NIF with cargo and copies it to `priv`."
  @shortdoc "Builds Olivine's NIF"
  use Mix.Task.Compiler

  @library "libolivine_nif"

  @impl true
  def run(_args) do
    case System.get_env("OLIVINE_NIF_PATH") do
      nil -> build() |> install()
      # A library that was built elsewhere.
      path -> install(path)
    end
  end

  # Cargo prints its own errors, and knows whether anything changed.
  defp build do
    cargo = System.find_executable("cargo") || Mix.raise("cargo is needed to build Olivine: https://rustup.rs")
    profile = System.get_env("OLIVINE_NIF_PROFILE", "release")
    args = ["build", "--profile", profile, "--lib", "-p", "olivine-nif"]
    options = [cd: native(), env: [{"RUSTLER_PRIMARY_NIF_INIT", "1"}], into: IO.stream(), stderr_to_stdout: true]

    case System.cmd(cargo, args, options) do
      {_, 0} -> built(cargo, profile)
      {_, code} -> Mix.raise("cargo #{Enum.join(args, " ")} ended with #{code}")
    end
  end

  @impl true
  def clean do
    for file <- Path.wildcard(Path.join(priv(), @library <> ".*")), do: File.rm!(file)
    :ok
  end

  # Where cargo puts the library. Erlang loads `.so` on macOS as well.
  defp built(cargo, profile) do
    {json, 0} = System.cmd(cargo, ["metadata", "--no-deps", "--format-version", "1"], cd: native())
    [_, target] = Regex.run(~r/"target_directory":"([^"]+)"/, json)
    extension = if :os.type() == {:unix, :darwin}, do: ".dylib", else: ".so"
    Path.join([target, if(profile == "dev", do: "debug", else: profile), @library <> extension])
  end

  # A library that is loaded must not be written over; a new file under the same name may.
  defp install(built) do
    File.mkdir_p!(priv())
    installed = Path.join(priv(), @library <> ".so")

    if File.read(built) == File.read(installed) do
      {:noop, []}
    else
      fresh = installed <> ".new"
      File.cp!(built, fresh)
      File.rename!(fresh, installed)
      # Makes `priv` a part of the build where it was not there before.
      Mix.Project.build_structure()
      {:ok, []}
    end
  end

  defp native, do: Path.join(__DIR__, "native")
  defp priv, do: Path.join(__DIR__, "priv")
end
