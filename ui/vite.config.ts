import { defineConfig } from "vite";

// The built files are committed: the controller serves them, and neither pip nor Docker needs Node.
export default defineConfig({
  base: "/ui/",
  build: {
    outDir: "../controller/dashboard/files",
    emptyOutDir: true,
    target: "es2023",
    assetsInlineLimit: 0, // the Content-Security-Policy allows no data: URLs
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    sourcemap: false,
  },
  server: { host: "127.0.0.1", proxy: { "/api": { target: "http://127.0.0.1:8080", ws: true } } },
});
