/** Figures as the command line writes them. What is unknown is a dash, never zero. */

export const UNKNOWN = "–";

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 12345 → 12,345. */
export function count(value: number | null | undefined): string {
  return value == null ? UNKNOWN : grouped.format(value);
}

/** MiB as GiB with at most one decimal: 81920 → 80, 902553.6 → 881.4. Without the unit. */
export function gibNumber(mib: number | null | undefined): string {
  if (mib == null) return UNKNOWN;
  const text = (Math.round((mib / 1024) * 10) / 10).toLocaleString("en-US", { maximumFractionDigits: 1 });
  return text;
}

/** As `gibNumber`, with the unit: 80 GiB. */
export function gib(mib: number | null | undefined): string {
  return mib == null ? UNKNOWN : `${gibNumber(mib)} GiB`;
}

/** A size of a spec: 20480MiB is 20 GiB. Other words, such as auto, stay. */
export function sizeText(size: string): string {
  const mib = /^(\d+)MiB$/.exec(size)?.[1];
  return mib === undefined ? size : gib(Number(mib));
}

const oneDecimal = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** 1234.56 → 1,234.6. */
export function tenths(value: number | null | undefined): string {
  return value == null ? UNKNOWN : oneDecimal.format(value);
}

/** 12.4 → 12 %. */
export function percent(value: number | null | undefined): string {
  return value == null ? UNKNOWN : `${Math.round(value)} %`;
}

/** GPU hours: two decimals below 100, none above. What is more than nothing is never 0.00. */
export function hours(value: number | null | undefined): string {
  if (value == null) return UNKNOWN;
  if (value > 0 && value < 0.005) return "<0.01";
  return value < 100 ? value.toFixed(2) : grouped.format(value);
}

/** An amount as decimal text with thousands grouped: 1234.50 is 1,234.50. Never read as a number: no digit changes. */
export function money(amount: string | null | undefined): string {
  return amount == null ? UNKNOWN : amount.replace(/\B(?=(\d{3})+\.)/g, ",");
}

/** 1 instance, 2 instances. */
export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** 1st, 2nd, 3rd, 4th, 11th. */
export function ordinal(number: number): string {
  const ten = number % 100;
  const suffix = ten >= 11 && ten <= 13 ? "th" : (["th", "st", "nd", "rd"][number % 10] ?? "th");
  return `${count(number)}${suffix}`;
}

/** The first block of a GPU's UUID, as the command line prints it. */
export function shortGpu(uuid: string): string {
  return uuid.replace(/^GPU-/, "").split("-")[0] ?? uuid;
}
