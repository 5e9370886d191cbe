"use strict";
// The page asks the server for what the address selects, and shows what comes. Nothing is inserted
// as HTML: texts of servers and tenants stay texts.
(() => {
  const byID = (id) => document.getElementById(id);
  const columns = [
    ["extension", "Extension"], ["state", "State"], ["reason", "Reason"], ["since", "Since"], ["identity", "Identity"],
    ["server", "API server"], ["replica", "Replica"], ["connects", "Connects"], ["scopes", "Scopes"],
  ];
  // of each state, the worst one first: a mark, so that colour is not all that differs, and a class
  const marks = {
    Disconnected: ["\u25b2", "bad"], Unknown: ["\u25cb", "unknown"], Degraded: ["\u25c6", "degraded"], Connecting: ["\u25d0", "wait"],
    Connected: ["\u25cf", "good"],
  };
  const selection = Object.fromEntries(new URLSearchParams(location.search));
  let token = ""; // in this page's memory only
  let stream = null; // the request under way
  let clockOffset = 0; // of the server's clock from ours
  let detailsOf = ""; // the details on the page: extension and what changed last
  let sharedBy = 0; // how many extensions share the cache of that extension
  let wasLost = false;
  let heard = 0; // when the stream under way last said something, or when it was asked for; 0 if there is none
  let hasView = false; // the stream under way has sent a view
  let asOf = 0; // when something came last that says that what is shown is so; 0 if nothing has come so far
  let latest = null; // the view that is shown

  const element = (name, text, className) => {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    if (className) e.className = className;
    return e;
  };
  // setText changes the text only if it differs, so that screen readers and selections are left alone.
  const setText = (e, text) => { if (e.textContent !== text) e.textContent = text; };

  const parameters = () => {
    const p = new URLSearchParams();
    for (const name of ["q", "state", "reason", "problems", "sort", "page", "extension"]) {
      if (selection[name]) p.set(name, selection[name]);
    }
    return p;
  };
  const headers = () => (token ? { Authorization: "Bearer " + token } : {});

  const select = (changes, { keepPage = false } = {}) => {
    if (!keepPage) delete selection.page;
    for (const [name, value] of Object.entries(changes)) {
      if (value) selection[name] = String(value); else delete selection[name];
    }
    const text = parameters().toString();
    history.replaceState(null, "", location.pathname + (text ? "?" + text : ""));
    showSelection();
    follow();
  };

  const ages = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const age = (time) => {
    let seconds = Math.max(0, Math.round((Date.now() + clockOffset - Date.parse(time)) / 1000));
    for (const [size, unit] of ages) {
      if (seconds >= size || size === 1) return Math.floor(seconds / size) + unit;
    }
  };
  const timeElement = (time, text) => {
    const e = element("time", text);
    e.dateTime = time;
    e.title = new Date(time).toLocaleString();
    return e;
  };
  const sinceElement = (time) => {
    const e = timeElement(time, age(time));
    e.dataset.age = "";
    return e;
  };
  const clockTime = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
  const showAges = () => {
    for (const e of document.querySelectorAll("time[data-age]")) setText(e, age(e.dateTime));
  };

  const follow = async () => {
    if (stream) stream.abort();
    const own = stream = new AbortController();
    for (;;) {
      let problem = "the stream ended";
      let pause = 2000;
      const begun = Date.now();
      heard = begun;
      hasView = false;
      try {
        const answer = await fetch("live?" + parameters(), { headers: headers(), signal: own.signal, cache: "no-store" });
        if (answer.status === 401 || answer.status === 403) {
          askForToken(answer.status === 401 ? "The server does not know this token." :
            "This user may not \"get\" the nonResourceURL of this page.");
          return;
        }
        if (!answer.ok) {
          pause = Math.max(pause, 1000 * Number(answer.headers.get("Retry-After")) || 0);
          throw new Error((await answer.text()).trim());
        }
        await receive(answer.body.getReader());
        if (own.signal.aborted) return;
        problem = "";
      } catch (e) {
        if (own.signal.aborted) return;
        problem = e.message;
      }
      heard = 0;
      if (problem && !isOld()) showLive("Not live: " + problem + ". Trying again.", true);
      else if (problem) pause = Math.max(pause, 2000); // the page says as of when it is
      else if (Date.now() - begun > 5000) pause = 0; // a stream that ends early would begin again and again
      await new Promise((done) => setTimeout(done, pause));
      if (own.signal.aborted) return;
    }
  };
  // receive shows each view of a stream of server-sent events, until it ends.
  const receive = async (reader) => {
    const decoder = new TextDecoder();
    let text = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard = Date.now();
        if (hasView) asOf = heard;
        if (wasLost && hasView) showLive("Live", false); // it was silent, and goes on
        text += decoder.decode(value, { stream: true });
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
          const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
          text = text.slice(end + 2);
          if (data.length > 0) receiveView(JSON.parse(data.join("\n")));
        }
      }
    } finally {
      reader.cancel().catch(() => {}); // so that the server ends the stream, too
    }
  };

  // oldAfter is how old in milliseconds what is shown may be. The server says something every 5 s.
  const oldAfter = 15000;
  // showSilence says that a stream is open and nothing comes, or as of when what is shown is.
  const showSilence = () => {
    if (document.hidden) return;
    const old = asOf > 0 && Date.now() - asOf > oldAfter;
    if (byID("content").classList.contains("old") !== old) {
      byID("content").classList.toggle("old", old);
      if (latest) show(latest);
    }
    if (old) {
      showLive("Not live: this is as of " + clockTime(asOf) + ", " + age(new Date(asOf + clockOffset).toISOString()) + " ago.", true);
    } else if (!hasView && heard > 0 && Date.now() - heard > 3000) {
      showLive("Waiting for the server. A proxy on the way may hold back what it sends.", true);
    }
  };

  const showLive = (text, lost) => {
    setText(byID("live"), text);
    byID("live").classList.toggle("lost", lost);
    wasLost = lost;
  };

  const askForToken = (error) => {
    byID("content").hidden = true;
    byID("sign-in").hidden = false;
    byID("sign-in-error").textContent = token ? error : "";
    token = "";
    heard = 0;
    showLive("Not signed in", false);
    byID("token").focus();
  };

  // what the address selects, on the controls
  const showSelection = () => {
    if (document.activeElement !== byID("q")) byID("q").value = selection.q || "";
    byID("state").value = selection.state || "";
    byID("problems").checked = selection.problems === "true";
    byID("reason").hidden = !selection.reason;
    setText(byID("reason"), "Reason: " + (selection.reason || "") + " \u2715");
    byID("reason").setAttribute("aria-label", "Show all reasons, not only " + (selection.reason || ""));
    const sort = selection.sort || "state";
    for (const heading of byID("columns").children) {
      const direction = sort === heading.dataset.name ? "ascending" : sort === "-" + heading.dataset.name ? "descending" : "none";
      heading.setAttribute("aria-sort", direction);
      heading.querySelector("span").textContent = { ascending: " \u2191", descending: " \u2193", none: "" }[direction];
    }
  };

  // receiveView shows a view that has just come.
  const receiveView = (view) => {
    clockOffset = Date.parse(view.time) - Date.now();
    hasView = true;
    asOf = Date.now();
    byID("content").classList.remove("old");
    if (wasLost || byID("live").textContent !== "Live") showLive("Live", false);
    show(view);
  };
  const isOld = () => byID("content").classList.contains("old");

  const show = (view) => {
    latest = view;
    byID("sign-in").hidden = true;
    byID("content").hidden = false;
    byID("notice").hidden = view.ready;
    showReplicas(view.replicas);
    showSummary(view.fleet);
    showProblems(view);
    showRows(view.page);
    showDetails(view.extension);
  };

  // podOf returns the host, which is the Pod, of a replica's name. What follows differs by process.
  const podOf = (name) => name.split("_")[0];
  // commonPrefix is what the names of all replicas begin with, up to a dash.
  let commonPrefix = "";
  const commonPrefixOf = (names) => {
    let prefix = names[0] || "";
    for (const name of names) while (!name.startsWith(prefix)) prefix = prefix.slice(0, -1);
    return prefix.slice(0, prefix.lastIndexOf("-") + 1);
  };
  const shortReplica = (name) => podOf(name.startsWith(commonPrefix) ? name.slice(commonPrefix.length) : name);
  // showReplicas shows whose extensions these are. Without a fleet there is nothing to say.
  const showReplicas = (replicas) => {
    byID("replicas").hidden = !replicas;
    byID("extensions").classList.toggle("replicas", Boolean(replicas)); // which have a column
    for (const heading of byID("columns").children) if (heading.dataset.name === "replica") heading.hidden = !replicas;
    if (!replicas) return;
    if (![...byID("state").options].some((option) => option.text === "Unknown")) {
      byID("state").insertBefore(element("option", "Unknown"), byID("state").options[2]);
      byID("state").value = selection.state || "";
    }
    setText(byID("notice"), "This replica has not heard yet what the others have.");
    commonPrefix = commonPrefixOf(replicas.names.map(podOf));
    const silent = replicas.silent || [];
    byID("replicas").classList.toggle("lost", silent.length > 0);
    byID("replicas").title = silent.map((replica) => replica.name).join(", ");
    setText(byID("replicas"), replicas.names.length === 0 ? "This replica does not know the others, and cannot tell what they have" :
      silent.length === 0 ? counted(replicas.names.length, "replica", "replicas") :
        counted(replicas.names.length, "replica", "replicas") + ", of which " + (silent.length === 1 ? "one is" : number(silent.length) + " are") +
        " not heard in time: " + silent.slice(0, 3).map((replica) => podOf(replica.name) +
          (replica.since ? " since " + clockTime(replica.since) : "")).join(", ") +
        (silent.length > 3 ? " and " + number(silent.length - 3) + " more" : ""));
  };

  const showPairs = (list, pairs) => {
    while (list.children.length > pairs.length) list.lastChild.remove();
    pairs.forEach(([name, value, className], i) => {
      let group = list.children[i];
      if (!group) {
        group = element("div");
        group.append(element("dt"), element("dd"));
        list.append(group);
      }
      setText(group.children[0], name);
      group.children[1].className = className || "";
      if (value instanceof Node) group.children[1].replaceChildren(value);
      else setText(group.children[1], String(value));
    });
  };

  const number = (n) => n.toLocaleString("en");
  const counted = (n, one, many) => number(n) + " " + (n === 1 ? one : many);

  // keep makes the children of a list those of items, by key, and keeps elements, and so their focus.
  const keep = (list, items, keyOf, create, fill) => {
    const old = new Map([...list.children].map((e) => [e.dataset.key, e]));
    let place = list.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      const e = old.get(key) || create(item);
      e.dataset.key = key;
      old.delete(key);
      fill(e, item);
      if (e === place) place = place.nextSibling;
      else list.insertBefore(e, place);
    }
    for (const e of old.values()) e.remove();
  };

  const showSummary = (fleet) => {
    const states = Object.keys(marks).filter((state) => fleet.states[state] || state === "Connected" || selection.state === state);
    keep(byID("bar"), states, (state) => state, () => element("i"), (e, state) => {
      e.className = marks[state][1];
      e.style.flexGrow = fleet.states[state] || 0;
      e.hidden = !fleet.states[state];
    });
    keep(byID("summary"), [...states, ""], (state) => state, (state) => {
      if (!state) return element("span", "", "faint");
      const button = element("button");
      button.type = "button";
      button.append(element("strong"), element("span"));
      button.addEventListener("click", () => select({ state: selection.state === state ? "" : state, reason: "" }));
      return button;
    }, (e, state) => {
      if (!state) {
        setText(e, "of " + counted(fleet.extensions, "extension", "extensions") + ", which read " +
          counted(fleet.scopes, "scope", "scopes") + (fleet.troubledScopes ? "; " + counted(fleet.troubledScopes, "fails", "fail") : ""));
        return;
      }
      const [mark, className] = marks[state];
      e.className = fleet.states[state] ? className : "faint";
      setText(e.children[0], mark + " " + number(fleet.states[state] || 0));
      setText(e.children[1], " " + state);
      e.setAttribute("aria-pressed", String(selection.state === state && !selection.reason));
    });
  };

  const linkTo = (extension) => {
    const button = element("button", extension, "link");
    button.type = "button";
    button.addEventListener("click", () => open(extension));
    return button;
  };
  const showProblems = (view) => {
    const groups = view.problems || [];
    const total = groups.reduce((sum, group) => sum + group.extensions, 0);
    document.title = (total && !isOld() ? "(" + total + ") " : "") + view.name + ": connections";
    byID("fine").hidden = groups.length > 0 || !view.ready;
    setText(byID("fine"), isOld() ? "There were none." : view.fleet.extensions ? "None: all extensions are connected, and get their work done." : "None: there are no extensions.");
    keep(byID("groups"), groups, (group) => group.state + " " + group.reason, (group) => {
      const li = element("li");
      const title = element("p", undefined, "title");
      const show = element("button");
      show.type = "button";
      show.addEventListener("click", () => {
        const on = selection.reason === group.reason && selection.state === group.state;
        select(on ? { reason: "", state: "" } : { reason: group.reason, state: group.state, problems: "" });
      });
      title.append(element("strong"), show, element("span", "", "faint"));
      li.append(title, element("p"), element("p", "", "named"), element("p", "", "faint"));
      return li;
    }, (li, group) => {
      const [mark, className] = marks[group.state];
      li.className = className;
      const [title, advice, named, message] = li.children;
      setText(title.children[0], mark + " " + group.reason);
      title.children[0].className = className;
      setText(title.children[1], counted(group.extensions, "extension", "extensions"));
      title.children[1].setAttribute("aria-pressed", String(selection.reason === group.reason && selection.state === group.state));
      title.children[1].setAttribute("aria-label", "Show " + counted(group.extensions, "extension", "extensions") + ": " + group.state + ", " + group.reason);
      if (group.latest && title.children[2].dataset.latest !== group.latest) {
        title.children[2].dataset.latest = group.latest;
        title.children[2].replaceChildren(sinceElement(group.latest), " ago");
        title.children[2].title = "the latest";
      }
      setText(advice, group.advice || group.state);
      const names = JSON.stringify([group.named, group.extensions]);
      if (named.dataset.names !== names) {
        named.dataset.names = names;
        named.replaceChildren(...group.named.map(linkTo));
        const more = group.extensions - group.named.length;
        if (more > 0) named.append(element("span", "and " + number(more) + " more", "faint"));
      }
      setText(message, group.message || "");
    });
  };

  const rowElement = () => {
    const tr = element("tr");
    const heading = element("th");
    heading.scope = "row";
    const button = element("button", "", "link");
    button.type = "button";
    button.addEventListener("click", () => open(tr.dataset.key));
    heading.append(button);
    tr.append(heading, element("td"), element("td", "", "long"), element("td", "", "when"), element("td", "", "long"),
      element("td", "", "long"), element("td", "", "when"), element("td", "", "number"), element("td", "", "number"));
    // A narrow page shows rows as blocks: they stay rows for screen readers.
    tr.setAttribute("role", "row");
    for (const cell of tr.children) cell.setAttribute("role", cell === heading ? "rowheader" : "cell");
    return tr;
  };
  // shortIdentity returns namespace/name of a ServiceAccount's username.
  const shortIdentity = (username) => {
    const [system, kind, namespace, name, ...more] = username.split(":");
    return system === "system" && kind === "serviceaccount" && name && more.length === 0 ? namespace + "/" + name : username;
  };
  const fillRow = (tr, row) => {
    const [heading, state, reason, since, identity, server, replica, connects, scopes] = tr.children;
    tr.className = row.state === "Unknown" ? "unknown" : "";
    tr.setAttribute("aria-current", String(row.extension === selection.extension));
    setText(heading.firstChild, row.extension);
    const [mark, className] = marks[row.state];
    setText(state, isOld() ? "was " + row.state : mark + " " + row.state);
    state.className = className;
    const why = [row.reason, row.message].filter(Boolean).join(": ");
    setText(reason, why);
    reason.title = why;
    if (!since.firstChild || since.firstChild.dateTime !== row.since) {
      since.replaceChildren(row.since ? sinceElement(row.since) : "");
    }
    since.title = row.state === "Unknown" && row.replica ? "This row is as of then." : "";
    setText(identity, shortIdentity(row.username || ""));
    identity.title = row.username || "";
    setText(server, row.target || "");
    server.title = row.target || "";
    replica.hidden = !latest.replicas;
    const claimants = row.claimedBy || [];
    setText(replica, (claimants.length > 1 ? claimants : [row.replica || ""]).map(shortReplica).join(" and "));
    replica.title = claimants.length > 1 ? claimants.join(" and ") + " claim it; this is what " + row.replica + " says." : row.replica || "";
    replica.classList.toggle("wait", claimants.length > 1);
    setText(connects, row.state === "Unknown" ? "" : String(row.connects));
    setText(scopes, row.scopes + (row.troubled ? " (" + row.troubled + " fail)" : ""));
    scopes.title = row.sharedBy > 1 ? row.sharedBy + " extensions share this cache" : "";
    scopes.className = "number" + (row.troubled ? " wait" : "");
  };
  const showRows = (page) => {
    keep(byID("rows"), page.rows, (row) => row.extension, rowElement, fillRow);
    setText(byID("matching"), counted(page.matching, "extension", "extensions"));
    setText(byID("page"), page.matching === 0 ? "No rows" :
      "Rows " + number(page.first) + " to " + number(page.first + page.rows.length - 1) + " of " + number(page.matching));
    byID("previous").disabled = page.number <= 1;
    byID("next").disabled = page.number >= page.pages;
    byID("previous").onclick = () => select({ page: page.number - 1 }, { keepPage: true });
    byID("next").onclick = () => select({ page: page.number + 1 }, { keepPage: true });
  };

  const showPanel = (shown) => {
    byID("details").hidden = !shown;
    byID("content").classList.toggle("beside", shown);
  };
  const open = (extension) => {
    if (extension !== selection.extension) { // nothing of another extension stays below the new heading
      byID("timeline").replaceChildren();
      byID("timeline").dataset.version = "";
      byID("advice").hidden = true;
      setText(byID("message"), "");
      byID("verdict").replaceChildren();
      byID("others").replaceChildren();
      showState(null);
    }
    select({ extension }, { keepPage: true });
    showPanel(true);
    setText(byID("details-heading"), extension);
    byID("details-heading").focus();
  };

  const showDetails = (extension) => {
    showPanel(Boolean(extension));
    if (!extension) { detailsOf = ""; return; }
    setText(byID("details-heading"), extension.extension);
    const row = extension.row;
    const [mark, className] = row ? marks[row.state] : ["", ""];
    byID("verdict").className = className;
    byID("verdict").replaceChildren(...(!row ? [] : [(isOld() ? "was " : mark + " ") + row.state + (row.reason ? ": " + row.reason : "") +
      " for ", sinceElement(row.since)]));
    setText(byID("message"), !row ? "This extension is not known here: it was deleted, or is not selected." : row.message || "");
    keep(byID("others"), extension.others || [], (problem) => problem.reason, () => element("li"), (li, problem) => setText(li,
      problem.reason + (problem.muted ? " (muted)" : "") + ": " + problem.message + (problem.advice ? ". " + problem.advice : "")));
    byID("advice").hidden = !extension.advice;
    setText(byID("advice"), extension.advice ? "What to do: " + extension.advice : "");
    showTimeline(extension.timeline);
    const version = JSON.stringify([extension.extension, row, extension.timeline[0]]);
    if (version !== detailsOf) {
      detailsOf = version;
      sharedBy = row ? row.sharedBy || 0 : 0;
      requestDetails();
    }
  };

  const showTimeline = (entries) => {
    const list = byID("timeline");
    const version = JSON.stringify(entries);
    if (list.dataset.version === version) return;
    list.dataset.version = version;
    list.replaceChildren(...entries.map((entry) => {
      const item = element("li");
      const good = ["Connected", "ProbeSucceeded", "Rotated", "CredentialUsed", "RequestsGranted", "Moved", "ReplicaHeard"].includes(entry.what) || entry.reason === "Synced";
      item.append(timeElement(entry.time, clockTime(entry.time)),
        element("strong", entry.what + (entry.reason ? " (" + entry.reason + ")" : ""), good ? "good" : "bad"));
      if (entry.message) item.append(" " + entry.message);
      return item;
    }));
    if (entries.length === 0) list.append(element("li", latest.replicas ? "Nothing has happened since this replica follows the others." : "Nothing has happened since this process began to lead."));
  };

  // requestDetails shows what the stream does not have: numbers of objects and times of probes.
  let requesting = ""; // the extension whose details are under way; one request at a time
  const requestDetails = async () => {
    const extension = selection.extension;
    if (!extension || requesting === extension) return;
    requesting = extension;
    try {
      const query = new URLSearchParams({ format: "json", extension });
      if (byID("message").textContent.startsWith("This extension is not known")) { showState(null); return; }
      const answer = await fetch("connections?" + query, { headers: headers(), cache: "no-store" });
      if (!answer.ok || selection.extension !== extension) return;
      showState((await answer.json()).connections[0]);
    } catch {
      // The stream says that the server is gone.
    } finally {
      if (requesting === extension) requesting = "";
    }
  };

  const showState = (state) => {
    const facts = [];
    const scopes = (state && state.scopes) || [];
    const fact = (name, value) => { if (value) facts.push([name, value]); };
    const silent = Boolean(state) && state.state === "Unknown";
    if (state) {
      fact("Replica", state.replica && state.replica + (silent ? ", which is not heard in time. The rest is as it said last" : ""));
      fact("Claimed by", (state.claimedBy || []).join(" and "));
      fact("State", (state.state || state.phase) + (state.since ? " since " + new Date(state.since).toLocaleString() : ""));
      fact("Identity", state.username);
      fact("Credential", state.source);
      fact("In use since", state.credentialSince && new Date(state.credentialSince).toLocaleString());
      fact("API server", state.target);
      fact("Token or certificate valid until", state.tokenExpires && new Date(state.tokenExpires).toLocaleString());
      fact("Last successful request", state.lastProbeSuccess && new Date(state.lastProbeSuccess).toLocaleString());
      fact("Probe error", state.probeError);
      const permission = (use) => use.verb + " " + (use.nonResourceURL ||
        use.resource + (use.subresource ? "/" + use.subresource : "") + (use.group ? "." + use.group : "")) +
        (use.names ? " " + use.names.join(", ") : "") +
        (use.anyNamespace ? " in several namespaces" : use.namespace ? " in " + use.namespace : " in the cluster");
      const record = state.permissions || {};
      fact("Refused in the last hour", (record.refused || []).map((use) => permission(use) + " (" + use.count + " times)").join("; "));
      fact("Permissions used", (record.used || []).map(permission).join("; "));
      fact("Watches", (state.watches || []).map((w) => w.name + ": " + w.kind.split(", Kind=").reverse().join(" of ") + ", " + w.scope).join("; "));
    }
    showPairs(byID("facts"), facts);
    // Of another replica's extension only the sum is known, while that replica answers.
    const isCounted = !state || state.counted !== false;
    const objects = isCounted ? scopes.reduce((sum, scope) => sum + scope.objects, 0) : state.allObjects;
    setText(byID("cost"), scopes.length === 0 ? "Nothing." : scopes.length + (scopes.length === 1 ? " informer" : " informers") +
      (objects === undefined ? "" : " with " + objects + (objects === 1 ? " object in memory" : " objects in memory")) +
      (sharedBy > 1 ? ", in a cache that " + sharedBy + " extensions share." : "."));
    byID("scopes").parentElement.hidden = scopes.length === 0;
    byID("scopes").className = silent ? "unknown" : "";
    byID("scopes").tBodies[0].replaceChildren(...scopes.map((scope) => {
      const tr = element("tr");
      const heading = element("th", scope.kind.split(", Kind=").reverse().join(" of "));
      heading.scope = "row";
      const bad = scope.state !== "Synced" && scope.state !== "Syncing";
      tr.append(heading, element("td", scope.scope), element("td", scope.representation),
        element("td", (silent ? "was " : "") + scope.state + (scope.error ? ": " + scope.error : ""), silent ? "" : bad ? "bad" : "good"),
        element("td", isCounted ? String(scope.objects) : "\u2013", "number"), element("td", (scope.dependents || []).join(", ")));
      return tr;
    }));
  };

  for (const [name, title] of columns) {
    const heading = element("th");
    heading.scope = "col";
    heading.dataset.name = name;
    heading.setAttribute("role", "columnheader");
    const button = element("button", title);
    button.type = "button";
    button.append(element("span"));
    button.addEventListener("click", () => select({ sort: (selection.sort || "state") === name ? "-" + name : name }));
    heading.append(button);
    byID("columns").append(heading);
  }
  let typing = 0;
  byID("q").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => select({ q: byID("q").value.trim() }), 200);
  });
  byID("filters").addEventListener("submit", (event) => event.preventDefault());
  byID("state").addEventListener("change", () => select({ state: byID("state").value }));
  byID("reason").addEventListener("click", () => { select({ reason: "", state: "" }); byID("q").focus(); });
  byID("problems").addEventListener("change", () => select({ problems: byID("problems").checked ? "true" : "" }));
  byID("close").addEventListener("click", () => {
    const extension = selection.extension;
    select({ extension: "" }, { keepPage: true });
    showPanel(false);
    const row = [...byID("rows").children].find((tr) => tr.dataset.key === extension);
    (row ? row.querySelector("button") : byID("q")).focus();
  });
  byID("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    token = byID("token").value.trim();
    byID("token").value = "";
    follow();
  });
  // A hidden page follows nothing: browsers allow few connections to a server, and the server few streams.
  document.addEventListener("visibilitychange", () => {
    if (!byID("sign-in").hidden) return;
    if (document.hidden && stream) {
      heard = 0;
      stream.abort();
    } else if (!document.hidden) {
      follow();
    }
  });
  setInterval(() => { showAges(); showSilence(); }, 1000);
  setInterval(() => { if (!document.hidden && !byID("details").hidden) requestDetails(); }, 5000);
  showSelection();
  if (document.body.dataset.access === "token") askForToken(""); else follow();
})();
