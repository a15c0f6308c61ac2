// Writes the stores of one origin of a Playwright storage state into the page's own stores.
async ({ localStorage: entries = [], indexedDB: databases = [] }) => {
  const typed = { i8: Int8Array, ui8: Uint8Array, ui8c: Uint8ClampedArray, i16: Int16Array, ui16: Uint16Array, i32: Int32Array,
    ui32: Uint32Array, f32: Float32Array, f64: Float64Array, bi64: BigInt64Array, bui64: BigUint64Array }
  const bare = { undefined: undefined, null: null, NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity, "-0": -0 }
  // Playwright's encoding of values that JSON cannot hold; `ids` are the objects that are referred to.
  const decode = (value, ids = new Map()) => {
    if (typeof value !== "object" || value === null) return value
    if ("ref" in value) return ids.get(value.ref)
    if ("v" in value) return bare[value.v]
    if ("d" in value) return new Date(value.d)
    if ("u" in value) return new URL(value.u)
    if ("bi" in value) return BigInt(value.bi)
    if ("r" in value) return new RegExp(value.r.p, value.r.f)
    if ("e" in value) return Object.assign(new Error(value.e.m), { name: value.e.n, stack: value.e.s })
    if ("a" in value) {
      const list = []
      ids.set(value.id, list)
      list.push(...value.a.map(item => decode(item, ids)))
      return list
    }
    if ("o" in value) {
      const object = {}
      ids.set(value.id, object)
      for (const { k, v } of value.o) if (k !== "__proto__") object[k] = decode(v, ids)
      return object
    }
    if ("ta" in value || "ab" in value) {
      const bytes = Uint8Array.from(atob((value.ta ?? value.ab).b), character => character.charCodeAt(0))
      return value.ta ? new typed[value.ta.k](bytes.buffer) : bytes.buffer
    }
    throw new Error("a value of another encoding")
  }
  const done = request => new Promise((resolve, reject) => {
    request.onsuccess = request.oncomplete = () => resolve(request.result)
    request.onerror = request.onabort = () => reject(request.error)
    request.onblocked = () => reject(new Error("the database is in use"))
  })
  for (const { name, value } of entries) localStorage.setItem(name, value)
  for (const { name, version, stores } of databases) {
    const opening = indexedDB.open(name, version)
    opening.onupgradeneeded = () => {
      for (const store of stores) {
        const path = store.keyPathArray ?? store.keyPath
        const made = opening.result.createObjectStore(store.name, {
          autoIncrement: store.autoIncrement, ...(path === undefined ? {} : { keyPath: path }) })
        for (const index of store.indexes ?? [])
          made.createIndex(index.name, index.keyPathArray ?? index.keyPath, { unique: index.unique, multiEntry: index.multiEntry })
      }
    }
    const database = await done(opening)
    if (stores.length) {
      const writing = database.transaction(stores.map(store => store.name), "readwrite")
      for (const store of stores) {
        for (const record of store.records) {
          const value = "valueEncoded" in record ? decode(record.valueEncoded) : record.value
          const key = "keyEncoded" in record ? decode(record.keyEncoded) : record.key
          writing.objectStore(store.name).put(value, ...(key === undefined ? [] : [key]))
        }
      }
      await done(writing)
    }
    database.close()
  }
}
