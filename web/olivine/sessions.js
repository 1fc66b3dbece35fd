// Devices that are open: each is opened once, and anew after it was lost.

import { Session } from "./wasm/olivine_web.js";

/** `{device, session, opened}` by device. */
const open = new Map();

function opened(device) {
  let place = open.get(device);
  if (!place) {
    place = { device };
    open.set(device, place);
    const keep = (session) => {
      place.session = session;
      return place;
    };
    // A device that cannot be opened now may be there later.
    place.opened = Session.open(device).then(keep).catch((error) => {
      forget(place);
      throw error;
    });
  }
  return place.opened;
}

// Only that session: another may be open by now.
function forget(place) {
  if (open.get(place.device) === place) open.delete(place.device);
}

/** The session that an option asks for, `{place: {device, session}}`; `reason` says why it is not on WebGPU. */
export async function choose(device = "auto") {
  if (device !== "auto") return { place: await opened(device) };
  try {
    return { place: await opened("webgpu") };
  } catch (error) {
    return { place: await opened("cpu"), reason: error.message };
  }
}

/** Does work on a session; after its device was lost, the next `choose` opens it anew. */
export async function onSession(place, work) {
  try {
    return await work(place.session);
  } catch (error) {
    if (/device was lost/.test(error?.message)) forget(place);
    throw error;
  }
}
