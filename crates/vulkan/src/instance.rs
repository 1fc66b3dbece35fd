//! The loader and the instance. The loader is opened once; plain instances are shared while one is in use.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ash::{ext, khr, vk};
use olivine_files::without_stray_lines;
use olivine_program::Error;

use crate::error::{INSTALL, failed};

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Warnings and errors of the validation layer. It may be kept beyond the device, to see what its end brings.
#[derive(Debug, Default)]
pub struct Messages(Mutex<Vec<String>>);

impl Messages {
    /// All so far, in order.
    pub fn list(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, message: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }
}

/// An instance, and what must go before it.
pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) entry: &'static ash::Entry,
    /// Whether debug utilities are on: names and labels, and messages with validation.
    pub(crate) debug: bool,
    pub(crate) messages: Option<Arc<Messages>>,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
}

/// Opens the loader, once for the process: drivers do not like to be unloaded.
fn entry() -> Result<&'static ash::Entry, Error> {
    static ENTRY: OnceLock<ash::Entry> = OnceLock::new();
    if let Some(entry) = ENTRY.get() {
        return Ok(entry);
    }
    // Safety: the system's Vulkan loader may be loaded at any time; it is never unloaded.
    let entry = unsafe { ash::Entry::load() }
        .map_err(|e| Error::Unavailable(format!("there is no Vulkan loader ({e}): {INSTALL}")))?;
    Ok(ENTRY.get_or_init(|| entry))
}

/// The shared instance without validation.
pub(crate) fn plain() -> Result<Arc<Instance>, Error> {
    static SHARED: Mutex<Weak<Instance>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = shared.upgrade() {
        return Ok(instance);
    }
    let instance = Arc::new(Instance::new(false)?);
    *shared = Arc::downgrade(&instance);
    Ok(instance)
}

/// An instance of its own under the validation layer.
pub(crate) fn validated() -> Result<Arc<Instance>, Error> {
    Ok(Arc::new(Instance::new(true)?))
}

impl Instance {
    fn new(validation: bool) -> Result<Self, Error> {
        let entry = entry()?;
        let mut extensions = names(entry, None)?;
        let mut layers = Vec::new();
        if validation {
            // Safety: the entry is loaded.
            let there = unsafe { entry.enumerate_instance_layer_properties() }
                .map_err(failed("vkEnumerateInstanceLayerProperties"))?;
            if !there.iter().any(|l| l.layer_name_as_c_str() == Ok(VALIDATION)) {
                return Err(Error::Unavailable(
                    "the Vulkan validation layer is not installed (on Debian and Ubuntu: apt install \
                     vulkan-validationlayers)"
                        .into(),
                ));
            }
            layers.push(VALIDATION.as_ptr());
            extensions.extend(names(entry, Some(VALIDATION))?);
        }
        let has = |name: &CStr| extensions.iter().any(|e| e.as_c_str() == name);
        let mut wanted = Vec::new();
        let mut flags = vk::InstanceCreateFlags::empty();
        let debug = has(ext::debug_utils::NAME);
        if debug {
            wanted.push(ext::debug_utils::NAME.as_ptr());
        }
        if has(khr::portability_enumeration::NAME) {
            wanted.push(khr::portability_enumeration::NAME.as_ptr());
            flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
        }
        let synchronisation = validation && has(ext::validation_features::NAME);
        if synchronisation {
            wanted.push(ext::validation_features::NAME.as_ptr());
        }

        let messages = (validation && debug).then(|| Arc::new(Messages::default()));
        let app = vk::ApplicationInfo::default()
            .application_name(c"olivine")
            .engine_name(c"olivine")
            .api_version(vk::API_VERSION_1_3);
        let enabled = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&enabled);
        let mut at_creation = messages.as_ref().map(messenger_info);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .flags(flags)
            .enabled_extension_names(&wanted)
            .enabled_layer_names(&layers);
        if synchronisation {
            info = info.push_next(&mut features);
        }
        if let Some(messenger) = &mut at_creation {
            info = info.push_next(messenger);
        }
        // Safety: all that the structure points to lives on this stack.
        let raw =
            without_stray_lines(|| unsafe { entry.create_instance(&info, None) }).map_err(|e| match e {
                vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
                    Error::Unavailable(format!("the Vulkan loader found no driver: {INSTALL}"))
                }
                other => Error::Unavailable(format!("no Vulkan instance could be made ({other}): {INSTALL}")),
            })?;
        let mut instance = Instance { raw, entry, debug, messages, messenger: None };
        if let Some(messages) = &instance.messages {
            let debug_utils = ext::debug_utils::Instance::new(entry, &instance.raw);
            // Safety: the messages outlive the messenger, which goes in `drop`.
            let messenger =
                unsafe { debug_utils.create_debug_utils_messenger(&messenger_info(messages), None) }
                    .map_err(failed("vkCreateDebugUtilsMessengerEXT"))?;
            instance.messenger = Some((debug_utils, messenger));
        }
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Safety: everything made from the instance holds it alive, so nothing is left.
        unsafe {
            if let Some((debug_utils, messenger)) = self.messenger.take() {
                debug_utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

fn names(entry: &ash::Entry, layer: Option<&CStr>) -> Result<Vec<std::ffi::CString>, Error> {
    // Safety: the entry is loaded.
    let properties = unsafe { entry.enumerate_instance_extension_properties(layer) }
        .map_err(failed("vkEnumerateInstanceExtensionProperties"))?;
    Ok(properties.iter().filter_map(|e| e.extension_name_as_c_str().ok()).map(CStr::to_owned).collect())
}

fn messenger_info(messages: &Arc<Messages>) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
        .pfn_user_callback(Some(collect))
        .user_data(Arc::as_ptr(messages).cast_mut().cast::<c_void>())
}

unsafe extern "system" fn collect(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // Safety: the layer passes its own data and our pointer, which lives as long as the messenger.
    unsafe {
        if let (Some(data), Some(messages)) = (data.as_ref(), messages.cast::<Messages>().as_ref()) {
            let text = data.message_as_c_str().map(CStr::to_string_lossy).unwrap_or_default();
            messages.push(text.into_owned());
        }
    }
    vk::FALSE
}
