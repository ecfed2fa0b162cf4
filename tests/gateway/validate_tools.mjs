// Tool definitions and the calls in a history, as the strictest upstream wants them. Returns texts; the caller says
// who refuses.

const TOOL_NAME = /^[A-Za-z0-9_-]{1,64}$/;
const SCHEMA_DEPTH_MAX = 64;
const CHOICES = new Set(["none", "auto", "required"]);

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export function checkTools({ tools, tool_choice: choice }) {
  if (tools === undefined) return choice === undefined ? [] : ["'tool_choice' is only allowed when 'tools' are specified"];
  if (!Array.isArray(tools)) return ["'tools' must be an array"];
  if (tools.length === 0) return ["[] is too short - 'tools'"];
  const names = tools.map((tool) => tool?.function?.name);
  const repeated = names.filter((name, index) => name !== undefined && names.indexOf(name) !== index);
  return [
    ...tools.flatMap((tool, index) => checkTool(tool, `tools[${index}]`)),
    ...new Set(repeated.map((name) => `tools: the name ${name} is used twice`)),
    ...checkChoice(choice, names),
  ];
}

function checkTool(tool, at) {
  if (!isObject(tool) || tool.type !== "function") return [`${at}.type must be "function"`];
  if (!isObject(tool.function)) return [`${at}.function is missing`];
  const { name, description, parameters } = tool.function;
  const reasons = [];
  if (typeof name !== "string" || !TOOL_NAME.test(name)) {
    reasons.push(`${at}.function.name must match ${TOOL_NAME.source}: ${JSON.stringify(name)}`);
  }
  if (description !== undefined && typeof description !== "string") reasons.push(`${at}.function.description must be text`);
  if (parameters === undefined) return reasons;
  if (!isObject(parameters) || parameters.type !== "object") {
    return [...reasons, `${at}.function.parameters must be a schema of type "object"`];
  }
  return [...reasons, ...checkSchema(parameters, `${at}.function.parameters`, 0)];
}

/** Only what upstreams are known to refuse; the rest of JSON Schema passes. */
function checkSchema(schema, at, depth) {
  if (typeof schema === "boolean") return [];
  if (!isObject(schema)) return [`${at} is not a schema`];
  if (depth > SCHEMA_DEPTH_MAX) return [`${at} is nested too deeply`];
  const reasons = [];
  const { properties, required, items, type } = schema;
  if (properties !== undefined && !isObject(properties)) reasons.push(`${at}.properties must be an object`);
  else for (const [key, inner] of Object.entries(properties ?? {})) reasons.push(...checkSchema(inner, `${at}.properties.${key}`, depth + 1));
  if (required !== undefined && !(Array.isArray(required) && required.every((key) => typeof key === "string"))) {
    reasons.push(`${at}.required must be an array of strings`);
  } else {
    const unknown = (required ?? []).filter((key) => isObject(properties) && !Object.hasOwn(properties, key));
    if (unknown.length > 0) reasons.push(`${at}.required names no property: ${unknown.join(", ")}`);
  }
  if ([type].flat().includes("array") && items === undefined) reasons.push(`${at}: array schema missing items`);
  if (items !== undefined) reasons.push(...checkSchema(items, `${at}.items`, depth + 1));
  for (const key of ["anyOf", "oneOf", "allOf"]) {
    const list = schema[key] ?? [];
    if (!Array.isArray(list)) reasons.push(`${at}.${key} must be an array`);
    else list.forEach((inner, index) => reasons.push(...checkSchema(inner, `${at}.${key}[${index}]`, depth + 1)));
  }
  return reasons;
}

function checkChoice(choice, names) {
  if (choice === undefined || CHOICES.has(choice)) return [];
  if (!isObject(choice) || choice.type !== "function") return ["'tool_choice' is not valid"];
  return names.includes(choice.function?.name) ? [] : ["'tool_choice' names a tool that is not in 'tools'"];
}

/** The `tool_calls` of one assistant message. */
export function checkToolCalls(calls, at) {
  if (calls === undefined || calls === null) return [];
  if (!Array.isArray(calls)) return [`${at}.tool_calls must be an array`];
  if (calls.length === 0) return [`[] is too short - '${at}.tool_calls'`];
  return calls.flatMap((call, index) => checkCall(call, `${at}.tool_calls[${index}]`));
}

function checkCall(call, at) {
  if (!isObject(call)) return [`${at} must be an object`];
  const reasons = [];
  if (typeof call.id !== "string" || call.id === "") reasons.push(`${at}.id is missing`);
  if (call.type !== "function") reasons.push(`${at}.type must be "function"`);
  const { name, arguments: text } = call.function ?? {};
  if (typeof name !== "string" || !TOOL_NAME.test(name)) reasons.push(`${at}.function.name is not valid: ${JSON.stringify(name)}`);
  if (!isJsonObjectText(text)) reasons.push(`${at}.function.arguments must be the text of a JSON object`);
  return reasons;
}

function isJsonObjectText(text) {
  if (typeof text !== "string") return false;
  try {
    return isObject(JSON.parse(text));
  } catch {
    return false;
  }
}
