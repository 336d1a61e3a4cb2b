// The page's script and its tests: what is undefined, unused or compared loosely is an error.
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["reports/vendor/"] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module" },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "eqeqeq": "error",
      "no-shadow": "error",
      "no-unused-vars": "error",
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
    },
  },
  { files: ["reports/script/**/*.js"], languageOptions: { globals: { ...globals.browser, Plotly: "readonly" } } },
  { files: ["tests/js/**/*.js", ".ci/*.js"], languageOptions: { globals: globals.node } },
];
