//! The line that installs something, in the words of this machine's package manager.

/// A family of systems that install alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    Debian,
    Fedora,
    Arch,
    Suse,
    Alpine,
    OtherLinux,
    MacOs,
    Other,
}

impl System {
    /// This machine's.
    pub(super) fn here() -> Self {
        if cfg!(target_os = "macos") {
            return System::MacOs;
        }
        if !cfg!(target_os = "linux") {
            return System::Other;
        }
        System::from_os_release(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Reads the fields `ID` and `ID_LIKE` of an os-release file.
    fn from_os_release(text: &str) -> Self {
        let fields = ["ID=", "ID_LIKE="].iter().flat_map(|field| {
            let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            line.trim_matches('"').split_whitespace()
        });
        let known = |id: &str| match id {
            "debian" | "ubuntu" => Some(System::Debian),
            "fedora" | "rhel" | "centos" => Some(System::Fedora),
            "arch" => Some(System::Arch),
            "suse" | "opensuse" | "opensuse-leap" | "opensuse-tumbleweed" => Some(System::Suse),
            "alpine" => Some(System::Alpine),
            _ => None,
        };
        fields.filter_map(known).next().unwrap_or(System::OtherLinux)
    }

    /// Installs the Vulkan loader and Mesa's drivers, with lavapipe, which needs no GPU.
    fn drivers(self) -> &'static str {
        match self {
            System::Debian => "apt-get install libvulkan1 mesa-vulkan-drivers",
            System::Fedora => "dnf install vulkan-loader mesa-vulkan-drivers",
            System::Arch => "pacman -S vulkan-icd-loader vulkan-swrast",
            System::Suse => "zypper install libvulkan1 libvulkan_lvp",
            System::Alpine => "apk add vulkan-loader mesa-vulkan-swrast",
            System::OtherLinux => "install the Vulkan loader and Mesa's Vulkan drivers",
            System::MacOs => "brew install vulkan-loader molten-vk (wgpu uses Metal and needs nothing)",
            System::Other => "install the GPU maker's driver",
        }
    }

    /// Installs the Khronos validation layer.
    fn layers(self) -> &'static str {
        match self {
            System::Debian => "apt-get install vulkan-validationlayers",
            System::Fedora => "dnf install vulkan-validation-layers",
            System::Arch => "pacman -S vulkan-validation-layers",
            System::Suse => "zypper install vulkan-validationlayers",
            System::Alpine => "apk add vulkan-validation-layers",
            System::MacOs => "brew install vulkan-validationlayers",
            System::OtherLinux | System::Other => "install the Vulkan validation layers",
        }
    }
}

/// The line for the loader and drivers on this machine.
pub(super) fn drivers() -> &'static str {
    System::here().drivers()
}

/// The line for the validation layer on this machine.
pub(super) fn layers() -> &'static str {
    System::here().layers()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_known_by_their_name_or_their_kin() {
        for (text, system) in [
            ("NAME=\"Debian\"\nID=debian\n", System::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", System::Debian),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", System::Fedora),
            ("ID=manjaro\nID_LIKE=arch\n", System::Arch),
            ("ID=alpine\n", System::Alpine),
            ("ID=something\n", System::OtherLinux),
            ("", System::OtherLinux),
        ] {
            assert_eq!(System::from_os_release(text), system, "{text}");
        }
        assert!(System::Debian.drivers().starts_with("apt-get install"));
    }
}
